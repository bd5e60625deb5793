// What a node says, in a card beside it, while the pointer rests on it. The list and the pane say the same without a pointer.
import { short } from "./format.js";

const WIDE = 300;
const MOST = 6; // lines of the step's words

/** Draws the card of a node; `scene` as in draw.js. `x`, `y`: the node's place on the canvas. */
export function drawTip(context, size, scene, id, x, y) {
  const { nodes, colours, values, visits } = scene;
  const width = Math.min(WIDE, size.width - 16);
  context.font = `12px ${colours.font}`;
  const said = (id === 0 ? "The question" : nodes.failure[id] ? `refused: ${nodes.failure[id]}` : nodes.content[id] ?? "").replace(/\s+/g, " ");
  const lines = wrapped(context, said, width - 20);
  const head = `${id}${nodes.action[id] ? ` ${nodes.action[id]}` : ""} · ${short(values[id])} · ×${visits[id]}`;
  const height = 16 * (lines.length + 1) + 14;
  const left = Math.max(8, Math.min(x + 14, size.width - width - 8));
  const top = y + 18 + height < size.height ? y + 18 : Math.max(8, y - 18 - height);
  context.beginPath();
  context.roundRect(left, top, width, height, 6);
  context.fillStyle = colours.raised;
  context.fill();
  context.lineWidth = 1;
  context.strokeStyle = colours.line;
  context.stroke();
  context.textBaseline = "top";
  context.fillStyle = colours.soft;
  context.fillText(head, left + 10, top + 8);
  context.fillStyle = colours.ink;
  lines.forEach((line, place) => context.fillText(line, left + 10, top + 8 + 16 * (place + 1)));
}

/** The text in lines that fit; of more than `MOST` the last ends in dots. */
function wrapped(context, text, width) {
  const lines = [];
  let line = "";
  for (const word of text.split(" ")) {
    const longer = line ? `${line} ${word}` : word;
    if (!line || context.measureText(longer).width <= width) line = longer;
    else {
      lines.push(line);
      line = word;
    }
    if (lines.length > MOST) break;
  }
  lines.push(line);
  if (lines.length > MOST) return [...lines.slice(0, MOST - 1), `${lines[MOST - 1]} …`];
  return lines;
}
