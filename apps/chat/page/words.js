// The words of the page: names of actions and modes, reasons why a turn has no answer, numbers as people read them.

/** What each mode does. */
export const MODES = {
  local: { name: "Index", does: "search the index" },
  direct: { name: "Talk", does: "converse, without searching" },
  reasoning: { name: "Reason", does: "think it through, without searching" },
  search: { name: "Search", does: "search the index, or the web where it has little" },
  web: { name: "Web", does: "search the web" },
  both: { name: "Both", does: "search the index and the web" },
  auto: { name: "Auto", does: "talk, or search" },
};

export const modeName = (mode) => MODES[mode]?.name ?? mode;
export const modeWords = (mode) => (MODES[mode] ? `${MODES[mode].name}: ${MODES[mode].does}` : mode);

/** How an answer is headed that nothing supports, and why it is: NOT_FOUND and LACKING of steprag/agent/citations.py. */
export const NOT_FOUND = "Not found in these documents";
export const LACKING = {
  nothing: "the searches found nothing",
  score: "the first search found no passage that is like the question",
  words: "no passage that was read holds a word of it",
  question: "the passages that hold it do not speak of what was asked",
  evidence: "nothing in the passages that were read answers the question",
};

/** Why a completion was refused; the service's own vocabulary (steprag/agent/grammar.py, FAILURES). */
export const REFUSALS = {
  truncated: "the token limit cut it off",
  empty: "it is empty",
  no_action: "it holds no complete action",
  several_actions: "it holds more than one action",
  no_lead: "the words that announce its action are missing",
  trailing_text: "text follows its closing tag",
  empty_content: "nothing stands between its tags",
  wrong_action: "its action is not allowed at this place",
  control_token: "it holds a control token of the chat template",
  degenerate: "it repeats itself",
  bad_call: "its call names no tool, or the arguments do not fit",
};

export const refusalWords = (reason) => REFUSALS[reason] ?? reason;

/** "Query" for "query". */
export const actionName = (action) => action.charAt(0).toUpperCase() + action.slice(1).replaceAll("_", " ");

/** What a question in a conversation with files searches. */
export const SEARCHED = { both: "My files first", files: "My files only", index: "The index only" };

/** Where passages come from. */
const SOURCES = { local: "the index", web: "the web", both: "the index and the web", files: "your files" };
export const sourceName = (source) => source.split("+").map((one) => SOURCES[one] ?? one).join(" and ");

/** "1 step", "2 steps". */
export const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

/** under 0.1 s, 0.8 s, 12 s, 2 min 5 s. */
export function duration(seconds) {
  if (seconds < 0.1) return "under 0.1 s";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** "just now", "5 min ago", "3 h ago", else the date. `updated`: seconds since 1970. */
export function ago(updated, now = Date.now() / 1000) {
  const seconds = now - updated;
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return new Date(updated * 1000).toLocaleDateString("en", { day: "numeric", month: "short", year: "numeric" });
}

/** With a full stop at the end, and a first letter in upper case unless it goes on behind other words. */
export function sentence(words, first = true) {
  const trimmed = words.trim();
  if (!trimmed) return "";
  const begun = first ? trimmed.charAt(0).toUpperCase() + trimmed.slice(1) : trimmed;
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}
