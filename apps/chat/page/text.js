// Text from models, passages and web pages, cut into pieces for display. Nothing here makes markup.

const TAG = /<\/?(?:query|evidence|answer|plan|search|reasoning|backtrack|summary|think)>|<\/?[a-z]{0,9}$/g;

/**
 * A completion in pieces: {kind: "prose" | "tag" | "content", text}. Joined, the texts are the completion.
 * `content` stands between an opening and a closing tag; a tag at the end may still be in the writing.
 */
export function splitTags(text) {
  const pieces = [];
  let inside = false;
  let from = 0;
  const add = (kind, piece) => piece && pieces.push({ kind, text: piece });
  for (const match of text.matchAll(TAG)) {
    add(inside ? "content" : "prose", text.slice(from, match.index));
    add("tag", match[0]);
    inside = !match[0].startsWith("</") && match[0] !== "<think>";
    from = match.index + match[0].length;
  }
  add(inside ? "content" : "prose", text.slice(from));
  return pieces;
}

const LOOP = /([^]{4,200}?)\1{3,}/;
const LOOKED_AT = 3000; // characters at the end that are looked at

/** The text without the loop that a model can fall into at the end: what it repeats stands once, and how often. */
export function unlooped(text) {
  const from = Math.max(0, text.length - LOOKED_AT);
  const found = LOOP.exec(text.slice(from));
  if (!found) return text;
  const times = found[0].length / found[1].length;
  const start = from + found.index;
  return `${text.slice(0, start)}${found[1].trimEnd()} … (${times} times)${text.slice(start + found[0].length)}`;
}

/**
 * A passage in pieces: {marked, text}. `spans` are [start, end) in characters as the service counts them: code points,
 * not the UTF-16 units of a JavaScript string.
 */
export function markSpans(text, spans) {
  const characters = Array.from(text);
  const pieces = [];
  let from = 0;
  for (const [start, end] of spans) {
    if (start > from) pieces.push({ marked: false, text: characters.slice(from, start).join("") });
    pieces.push({ marked: true, text: characters.slice(start, end).join("") });
    from = end;
  }
  if (from < characters.length) pieces.push({ marked: false, text: characters.slice(from).join("") });
  return pieces;
}

/** The address if it is one of the web (http, https) and can be linked; else null. */
export function webAddress(url) {
  if (typeof url !== "string") return null;
  try {
    const { protocol, href } = new URL(url);
    return protocol === "http:" || protocol === "https:" ? href : null;
  } catch {
    return null;
  }
}
