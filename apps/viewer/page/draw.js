// Draws a tree on a canvas. Nodes of one colour are one path, lines too, and what lies outside is left out: ten thousand
// nodes fit into a frame.
import { stepOf, STEPS } from "./colours.js";
import { shortened } from "./format.js";
import { drawTip } from "./tip.js";

const TURN = 2 * Math.PI;

/** The radius of a node, in pixels at scale 1: its area goes with the visits. */
export const radius = (visits) => Math.min(13, 4.2 + 1.5 * Math.sqrt(visits));

/**
 * `scene`: nodes (columns), roles of actions, shape, visits, values and their range, colours, upTo (nodes with greater ids are not
 * there yet), under (the node whose children are being made, or null), selected, hits (a set of ids or null), principal and chosen
 * (sets of ids), hovered.
 */
export function draw(context, size, view, scene) {
  const { colours } = scene;
  context.setTransform(size.ratio, 0, 0, size.ratio, 0, 0);
  context.fillStyle = colours.paper;
  context.fillRect(0, 0, size.width, size.height);
  const seen = visible(size, view, scene);
  lines(context, view, scene, seen);
  if (view.scale > 0.55) labels(context, size, view, scene, seen); // below the nodes: no word hides one
  dots(context, view, scene, seen);
  if (view.scale > 0.35) marks(context, view, scene, seen);
  ring(context, view, scene, scene.under, colours.found, 3);
  ring(context, view, scene, scene.hovered, colours.soft, 1.5);
  ring(context, view, scene, scene.selected, colours.ink, 2.5);
  const { hovered, shape, upTo } = scene;
  if (hovered !== null && hovered <= upTo) drawTip(context, size, scene, hovered, across(view, shape.x[hovered]), down(view, shape.y[hovered]));
}

const across = (view, x) => x * view.scale + view.x;
const down = (view, y) => y * view.scale + view.y;

/**
 * The ids of the nodes on the canvas, and a margin around it. From afar many nodes of a column share a pixel: the first
 * stands for them, unless one is on a marked path or is looked for.
 */
function visible(size, view, { shape, upTo, nodes, principal, chosen, hits }) {
  const ids = [];
  const margin = 40;
  const taken = view.scale < 0.15 && hits === null ? new Set() : null;
  for (let id = 0; id <= upTo && id < nodes.parent.length; id++) {
    const x = across(view, shape.x[id]);
    const y = down(view, shape.y[id]);
    if (y <= -margin || y >= size.height + margin || x <= -margin - 300 || x >= size.width + margin) continue;
    if (taken) {
      const pixel = nodes.depth[id] * 65536 + Math.round(y) + margin;
      if (taken.has(pixel) && !principal.has(id) && !chosen.has(id)) continue;
      taken.add(pixel);
    }
    ids.push(id);
  }
  return ids;
}

function lines(context, view, scene, seen) {
  const { nodes, shape, principal, chosen, colours, hits } = scene;
  const curved = view.scale > 0.3;
  const plain = new Path2D();
  const main = new Path2D();
  const mine = new Path2D();
  for (const id of seen) {
    const parent = nodes.parent[id];
    if (parent === null) continue;
    const path = chosen.has(id) ? mine : principal.has(id) ? main : plain;
    const [x, y, px, py] = [across(view, shape.x[id]), down(view, shape.y[id]), across(view, shape.x[parent]), down(view, shape.y[parent])];
    path.moveTo(px, py);
    if (curved) path.bezierCurveTo((px + x) / 2, py, (px + x) / 2, y, x, y);
    else path.lineTo(x, y);
  }
  context.lineWidth = 1;
  context.globalAlpha = hits ? 0.35 : 1;
  stroke(context, plain, colours.line);
  context.globalAlpha = 1;
  context.lineWidth = 2.5;
  stroke(context, main, [...principal].some((id) => nodes.prediction_f1[id] === 1) ? colours.right : colours.soft);
  context.lineWidth = 2;
  stroke(context, mine, colours.ink);
}

function stroke(context, path, colour) {
  context.strokeStyle = colour;
  context.stroke(path);
}

/** A node's outline by what its action does: a square keeps, a diamond ends; what asks, and all else, is a circle. */
function outline(path, role, x, y, r) {
  if (r < 2.5) return path.rect(x - r, y - r, 2 * r, 2 * r);
  path.moveTo(x + r, y);
  if (role === "ends") {
    const d = r * 1.25;
    path.moveTo(x, y - d);
    path.lineTo(x + d, y);
    path.lineTo(x, y + d);
    path.lineTo(x - d, y);
    path.closePath();
  } else if (role === "keeps") path.rect(x - r * 0.88, y - r * 0.88, r * 1.76, r * 1.76);
  else path.arc(x, y, r, 0, TURN);
}

function dots(context, view, scene, seen) {
  const { nodes, shape, values, range, colours, hits, roles } = scene;
  const groups = Array.from({ length: 2 * (STEPS + 2) }, () => null);
  const zoom = Math.min(1.6, Math.max(view.scale, 0.12));
  for (const id of seen) {
    const faint = hits !== null && !hits.has(id);
    const step = nodes.failure[id] ? STEPS + 1 : stepOf(values[id], range) + 1;
    const path = (groups[2 * step + faint] ??= new Path2D());
    const r = Math.max(1.2, radius(scene.visits[id]) * zoom);
    outline(path, roles[nodes.action[id]], across(view, shape.x[id]), down(view, shape.y[id]), r);
  }
  context.lineWidth = 1.5;
  groups.forEach((path, at) => {
    if (!path) return;
    const step = (at >> 1) - 1;
    context.globalAlpha = at & 1 ? 0.25 : 1;
    if (step === -1 || step === STEPS) {
      context.fillStyle = colours.paper;
      context.fill(path);
      stroke(context, path, step === STEPS ? colours.wrong : colours.none);
    } else {
      context.fillStyle = colours.ramp[step];
      context.fill(path);
    }
  });
  context.globalAlpha = 1;
}

/** Ticks of right answers, crosses of wrong ones, bars of refused steps: words say the same in list and pane. */
function marks(context, view, scene, seen) {
  const { nodes, shape, colours } = scene;
  const ticks = new Path2D();
  const crosses = new Path2D();
  const bars = new Path2D();
  const zoom = Math.min(1.6, view.scale);
  for (const id of seen) {
    const x = across(view, shape.x[id]);
    const y = down(view, shape.y[id]);
    const s = 3.4 * zoom;
    if (nodes.failure[id]) {
      bars.moveTo(x - s, y);
      bars.lineTo(x + s, y);
    } else if (nodes.prediction_f1[id] === 1) {
      ticks.moveTo(x - s, y);
      ticks.lineTo(x - s * 0.2, y + s * 0.8);
      ticks.lineTo(x + s, y - s * 0.8);
    } else if (nodes.terminal[id]) {
      crosses.moveTo(x - s * 0.8, y - s * 0.8);
      crosses.lineTo(x + s * 0.8, y + s * 0.8);
      crosses.moveTo(x + s * 0.8, y - s * 0.8);
      crosses.lineTo(x - s * 0.8, y + s * 0.8);
    }
  }
  context.lineWidth = 1.8 * Math.min(1.3, zoom);
  stroke(context, ticks, colours.paper);
  stroke(context, crosses, colours.paper);
  stroke(context, bars, colours.wrong);
}

function ring(context, view, scene, id, colour, width) {
  const { shape, upTo } = scene;
  if (id === null || id > upTo) return;
  const path = new Path2D();
  const r = Math.max(4, radius(scene.visits[id]) * Math.min(1.6, Math.max(view.scale, 0.12))) + 4;
  path.arc(across(view, shape.x[id]), down(view, shape.y[id]), r, 0, TURN);
  context.lineWidth = width;
  stroke(context, path, colour);
}

function labels(context, size, view, scene, seen) {
  const { nodes, shape, colours, hits } = scene;
  const zoom = Math.min(1.25, Math.max(0.95, view.scale));
  context.font = `${11.5 * zoom}px ${colours.font}`;
  context.textBaseline = "middle";
  context.lineJoin = "round";
  context.lineWidth = 4;
  context.strokeStyle = colours.paper;
  const places = seen.map((id) => {
    const y = down(view, shape.y[id]);
    const r = radius(scene.visits[id]) * Math.min(1.6, view.scale);
    return { id, node: across(view, shape.x[id]), r, line: y, y: shape.children[id].length ? y + (nodes.depth[id] % 2 ? 13 : -13) * zoom : y };
  });
  const { room, take } = roomBeside(places, 12 * zoom);
  const rank = (id) => (id === scene.selected ? 3 : scene.chosen.has(id) ? 2 : scene.principal.has(id) ? 1 : 0);
  places.sort((a, b) => rank(b.id) - rank(a.id) || scene.visits[b.id] - scene.visits[a.id]); // who comes first has the room
  for (const { id, node, y, r } of places) {
    const text = nodes.failure[id] ?? nodes.content[id] ?? "";
    const x = node + r + 6 * Math.min(1.6, view.scale);
    const letters = Math.floor((Math.min(room(x, y), 330, Math.max(size.width - node, 60)) - 8) / (5.7 * zoom));
    if (!text || letters < 3) continue;
    const label = shortened(text.replace(/\s+/g, " "), letters);
    take(x, x + context.measureText(label).width, y);
    context.globalAlpha = hits !== null && !hits.has(id) ? 0.35 : 1;
    context.strokeText(label, x, y);
    context.fillStyle = nodes.failure[id] ? colours.wrong : colours.ink;
    context.fillText(label, x, y);
  }
  context.globalAlpha = 1;
}

/**
 * `room`: how far a label that begins at `x` along `y` may run until a node or another label stands in its way, 0 where
 * one stands there already. `take`: that a label now stands there.
 */
function roomBeside(places, high) {
  const bands = new Map();
  const take = (from, to, y) => {
    const band = Math.floor(y / high);
    if (!bands.has(band)) bands.set(band, []);
    bands.get(band).push([from, to, y]);
  };
  for (const { node, r, line } of places) take(node - r, node + r, line);
  const room = (x, y) => {
    const band = Math.floor(y / high);
    let least = Infinity;
    for (const near of [band - 1, band, band + 1]) {
      for (const [from, to, there] of bands.get(near) ?? []) {
        if (to > x && Math.abs(there - y) < high) least = Math.min(least, Math.max(0, from - x));
      }
    }
    return least;
  };
  return { room, take };
}
