// A word diff: the longest common run of words of two texts; what only one has is marked.
import { html } from "./html.js";

const MOST = 1500; // words of each text that are compared; what is longer is shown plain

const words = (text) => text.match(/\s+|[^\s]+/g) ?? [];

/** Pieces of both texts: {text, same}; joined they are the texts. */
export function diff(left, right) {
  const [a, b] = [words(left), words(right)];
  if (a.length > MOST || b.length > MOST) return [[{ text: left, same: true }], [{ text: right, same: true }]];
  const width = b.length + 1;
  const longest = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      longest[i * width + j] = a[i] === b[j]
        ? longest[(i + 1) * width + j + 1] + 1
        : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  const [mine, yours] = [[], []];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      add(mine, a[i++], true);
      add(yours, b[j++], true);
    } else if (j >= b.length || (i < a.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) add(mine, a[i++], false);
    else add(yours, b[j++], false);
  }
  return [mine, yours];
}

function add(pieces, text, same) {
  const last = pieces.at(-1);
  if (last?.same === same) last.text += text;
  else pieces.push({ text, same });
}

export function Pieces({ pieces, tag }) {
  return html`<div class="raw">${pieces.map(({ text, same }) =>
    same ? text : tag === "ins" ? html`<ins>${text}</ins>` : html`<del>${text}</del>`)}</div>`;
}
