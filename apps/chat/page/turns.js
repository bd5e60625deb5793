// A turn as the page holds it, and what each event of its stream changes. Plain data and pure functions.
//
// turn: {id, conversation, asked, question, mode, parent, queued, status, heard, opening, steps, answer, finish,
//        refused, error, usage, seconds, feedback, fresh, route, why, source}
//   status   "waiting" (no event yet) | "running" | "finished" | "failed" | "cancelled"
//   heard    whether the service is heard; false while the page tries to reach it again
//   fresh    asked from this page, not read from the past
//   route    what an auto turn was taken for, "talk" or "question", and why; null where nobody decided
//   source   "files", "index" or "both", of a conversation with files; else null
//   opening  what a search with the question itself found, or null
// step: {place, allowed, action, content, text, given, done, usage, seconds, passages}
//   given    taken over from the turn that this one forks; the last of them is the person's own
//   passages {source, why, items} or null

/** A turn of which nothing is known but who asked what. */
export function newTurn(id, conversation, known = {}) {
  return {
    id, conversation, asked: "", question: "", mode: "", parent: null, queued: 0, status: "waiting", heard: true,
    opening: null, steps: [], answer: null, finish: null, refused: null, error: null, usage: null, seconds: null,
    feedback: null, fresh: false, route: null, why: null, source: null, ...known,
  };
}

/** Whether the turn is one of conversation, which has no steps to show. */
export const isTalk = (turn) => (turn.route ?? (turn.mode === "direct" ? "talk" : "")) === "talk";

/** Whether the turn is over. */
export const isOver = (turn) => turn.status !== "waiting" && turn.status !== "running";

const APPLY = {
  "turn.started": ({ id, asked, question, feedback, fresh, source }, { conversation, mode, parent, queued }) =>
    newTurn(id, conversation, { asked, question, feedback, fresh, source, mode, parent, queued }),
  question: (turn, { asked, question, route = null, why = null }) =>
    ({ ...turn, asked, question, route, why, status: "running" }),
  "step.started": (turn, { step, allowed }) => withStep(turn, step, { allowed }),
  "step.delta": (turn, { step, text }) => withStep(turn, step, { text: (turn.steps[step]?.text ?? "") + text }),
  "step.finished": (turn, { step, action, content, text, given, usage = null, seconds = null }) =>
    withStep(turn, step, { action, content, text, given: Boolean(given), usage, seconds, done: true }),
  passages: (turn, { step, source, why = null, items }) => {
    const passages = { source, why, items };
    return step < 0 ? { ...turn, opening: passages } : withStep(turn, step, { passages });
  },
  answer: (turn, { content, sources, lacks = null, extractive = false }) =>
    ({ ...turn, answer: { content, sources, lacks, extractive } }),
  "turn.finished": (turn, { finish, refused = null, usage, seconds }) =>
    withRefused({ ...turn, status: "finished", finish, refused, usage, seconds }),
  "turn.failed": (turn, { message, code }) => ({ ...turn, status: "failed", error: { message, code } }),
  "turn.cancelled": (turn) => ({ ...turn, status: "cancelled" }),
};

/** The turn after an event. An event of a type that is not known changes nothing. */
export function applyEvent(turn, event) {
  return APPLY[event.type]?.(turn, event) ?? turn;
}

function withStep(turn, place, change) {
  const blank = { place, allowed: [], action: null, content: "", text: "", given: false, done: false, passages: null };
  const steps = [...turn.steps];
  steps[place] = { ...(steps[place] ?? blank), ...change };
  return { ...turn, steps };
}

/** The refused completion stands where the step would have stood. */
function withRefused(turn) {
  if (turn.refused === null) return turn;
  const open = turn.steps.findIndex((step) => !step.done);
  return withStep(turn, open < 0 ? turn.steps.length : open, { text: turn.refused });
}

/** Every search of the turn, in order: {source, why, items}. */
export function searchesOf(turn) {
  return [turn.opening, ...turn.steps.map((step) => step.passages)].filter(Boolean);
}

/** The turn's passages by their number. */
export function passagesOf(turn) {
  const found = new Map();
  for (const search of searchesOf(turn)) {
    for (const item of search.items) if (!found.has(item.n)) found.set(item.n, item);
  }
  return found;
}

/** Where a passage comes from; ids of files that a person gave begin as the service makes them. */
export const originOf = (item) => (item.url ? "web" : /^f[0-9a-f]{16}\//.test(item.id) ? "files" : "local");

/** The chips of the answer's passages: each cited one's place among them, by its number. */
export function chipsOf(turn) {
  const cited = (turn.answer?.sources ?? []).filter((source) => source.cited);
  return new Map(cited.map((source, place) => [source.n, place + 1]));
}

/** The marked ranges of the turn's passages, by number. */
export function spansOf(turn) {
  return new Map((turn.answer?.sources ?? []).map((source) => [source.n, source.spans]));
}
