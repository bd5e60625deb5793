// What the page knows, and how it changes. A pure reducer: everything that happens is one of the actions below.
//
// state: {session, info, conversations, current, order, turns, files, coming, notice, said}
//   session   "unknown" | "open" | "closed" (the service wants its token)
//   current   id of the conversation that is shown, or null for a new one
//   order     {conversation: [turn ids, oldest first]}
//   turns     {id: turn}, see turns.js; turns of other conversations go on in the background
//   files     {conversation: [{id, name, pages, passages, notes}]}
//   coming    files that are being read or were refused: [{key, conversation, name, wrong}], `wrong` null or the reason
//   notice    one line above the question box, or null
//   said      what a screen reader is told last: ends of steps and turns, never tokens
import { actionName, count, NOT_FOUND, refusalWords } from "./words.js";
import { applyEvent, newTurn } from "./turns.js";

export const START = {
  session: "unknown", info: null, conversations: [], current: null, order: {}, turns: {}, files: {}, coming: [], notice: null, said: "",
};

const REDUCE = {
  "session.open": (state, { info }) => ({ ...state, session: "open", info, notice: null }),
  "session.closed": (state) => ({ ...state, session: "closed", coming: state.coming.filter((one) => one.wrong) }),
  conversations: (state, { conversations }) => ({ ...state, conversations }),
  shown: (state, { conversation }) => ({ ...state, current: conversation, notice: null }),
  notice: (state, { text }) => ({ ...state, notice: text, said: text ?? state.said }),
  said: (state, { text }) => ({ ...state, said: text }),

  /** The turns of a conversation as the service lists them; those that are known already stay as they are. */
  listed: (state, { conversation, rows, files }) => {
    const turns = { ...state.turns };
    for (const row of rows) turns[row.turn] ??= listedTurn(conversation, row);
    const order = { ...state.order, [conversation]: rows.map((row) => row.turn) };
    return { ...state, turns, order, files: { ...state.files, [conversation]: files } };
  },
  "files.coming": (state, { coming }) => ({ ...state, coming: [...state.coming, ...coming] }),
  "file.refused": (state, { key, wrong }) => ({
    ...state,
    coming: state.coming.map((one) => (one.key === key ? { ...one, wrong } : one)),
    said: wrong,
  }),
  "file.dismissed": (state, { key }) => ({ ...state, coming: state.coming.filter((one) => one.key !== key) }),
  "file.added": (state, { key, conversation, file }) => {
    const others = (state.files[conversation] ?? []).filter((one) => one.id !== file.id);
    const coming = state.coming.filter((one) => one.key !== key);
    return { ...state, coming, files: { ...state.files, [conversation]: [...others, file] }, said: `Added: ${file.name}` };
  },
  "file.removed": (state, { conversation, file }) => ({
    ...state,
    files: { ...state.files, [conversation]: state.files[conversation].filter((one) => one.id !== file.id) },
    said: `Removed: ${file.name}`,
  }),
  asked: (state, { conversation, turn, known }) => ({
    ...state,
    notice: null,
    turns: { ...state.turns, [turn]: newTurn(turn, conversation, known) },
    order: { ...state.order, [conversation]: [...(state.order[conversation] ?? []), turn] },
  }),
  event: (state, { turn, event }) => {
    const known = state.turns[turn];
    const said = known.conversation === state.current ? announcement(known, event, state.said) : null;
    return { ...withTurn(state, turn, applyEvent(known, event)), said: said ?? state.said };
  },
  changed: (state, { turn, change }) => withTurn(state, turn, { ...state.turns[turn], ...change }),
  deleted: (state, { conversation }) => ({
    ...state,
    current: state.current === conversation ? null : state.current,
    conversations: state.conversations.filter((one) => one.id !== conversation),
    order: { ...state.order, [conversation]: [] },
    files: { ...state.files, [conversation]: [] },
    said: "Conversation deleted.",
  }),
};

export function reduce(state, action) {
  return REDUCE[action.type](state, action);
}

/** The turns of the conversation that is shown, oldest first. */
export const shownTurns = (state) => (state.order[state.current] ?? []).map((id) => state.turns[id]);

/** The files of the conversation that is shown, and those that are on their way to it. */
export const shownFiles = (state) => ({
  files: state.files[state.current] ?? [],
  coming: state.coming.filter((one) => one.conversation === state.current),
});

function withTurn(state, id, turn) {
  return { ...state, turns: { ...state.turns, [id]: turn } };
}

function listedTurn(conversation, { turn, asked, mode, parent, feedback, source, status }) {
  return newTurn(turn, conversation, { asked, question: asked, mode, parent, feedback, source, fresh: status === "running" });
}

/** What a screen reader is told of an event, after `before`; null for most, and for turns that are only told again. */
function announcement(turn, event, before) {
  if (!turn.fresh && event.type !== "turn.failed") return null;
  switch (event.type) {
    case "step.finished":
      return event.given ? null : `Step ${event.step + 1}, ${actionName(event.action)}: ${event.content}`;
    case "passages":
      return `${before} (${count(event.items.length, "passage")} found)`.trim();
    case "answer":
      return event.lacks ? `${NOT_FOUND}. A guess: ${event.content}` : `Answer: ${event.content}`;
    case "turn.finished":
      return event.finish === "answer" ? null : `No answer: the last step was refused, ${refusalWords(event.finish)}.`;
    case "turn.failed":
      return `The turn failed: ${event.message}`;
    case "turn.cancelled":
      return "Stopped.";
    default:
      return null;
  }
}
