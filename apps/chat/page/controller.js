// What the page does: asks the service, follows turns, and tells the reducer. Views call these functions, nothing else.
import * as api from "./api.js";
import { named } from "./signin.js";
import { follow } from "./stream.js";
import { sentence } from "./words.js";

/** The token and the conversation that the address names. */
export function addressed(hash) {
  const said = named(hash);
  return { token: said.get("token"), conversation: said.get("c") };
}

/** The page's actions. `dispatch` tells the reducer, `getState` gives what it knows now. */
export function createController(dispatch, getState) {
  const followed = new Map(); // turn id -> AbortController
  const adding = new Set(); // promises: files that are being read
  let keys = 0;

  /** Runs a request. What goes wrong becomes the line above the question box, or the form for the token. */
  async function attempt(work, whereWrong = tell) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof api.ApiError)) throw error;
      if (error.status === 401) dispatch({ type: "session.closed" });
      else whereWrong(error);
      return undefined;
    }
  }

  function tell(error) {
    const again = error.retryAfter ? ` Try again in ${error.retryAfter} seconds.` : "";
    dispatch({ type: "notice", text: `${sentence(error.message)}${again}` });
  }

  /** Follows a turn in the background until it is over; leaving its conversation does not end it. */
  async function followTurn(turn) {
    if (followed.has(turn)) return;
    const leaving = new AbortController();
    followed.set(turn, leaving);
    const lost = ({ message, code }) =>
      dispatch({ type: "event", turn, event: { type: "turn.failed", message, code } });
    await attempt(
      () =>
        follow(turn, {
          signal: leaving.signal,
          onEvent: (event) => dispatch({ type: "event", turn, event }),
          onConnection: (heard) => {
            dispatch({ type: "changed", turn, change: { heard } });
            if (!heard) dispatch({ type: "said", text: "The connection to the service is lost. Trying again." });
          },
        }),
      lost,
    );
    followed.delete(turn);
    if (!leaving.signal.aborted && getState().turns[turn]?.fresh) await listConversations();
  }

  async function listConversations() {
    const listed = await attempt(api.getConversations);
    if (listed) dispatch({ type: "conversations", conversations: listed.conversations });
  }

  /** Shows a conversation; null is a new one. `push`: whether the browser's "back" leads to what was shown before. */
  async function show(conversation, push = true) {
    const address = conversation ? `#c=${conversation}` : window.location.pathname;
    if (push) window.history.pushState(null, "", address);
    else window.history.replaceState(null, "", address);
    dispatch({ type: "shown", conversation });
    if (!conversation) return;
    const listed = await attempt(() => api.getConversation(conversation), (error) => {
      if (error.status !== 404 || getState().current !== conversation) return tell(error);
      window.history.replaceState(null, "", window.location.pathname);
      dispatch({ type: "shown", conversation: null });
      return dispatch({ type: "notice", text: "That conversation is not there any more." });
    });
    if (!listed) return;
    dispatch({ type: "listed", conversation, rows: listed.turns, files: listed.files });
  }

  /** Signs in with the token of the address, if any, and shows the conversation that it names. */
  async function start() {
    const { token, conversation } = addressed(window.location.hash);
    if (token) {
      const signed = await attempt(() => api.signIn(token).then(() => true));
      window.history.replaceState(null, "", conversation ? `#c=${conversation}` : window.location.pathname);
      if (!signed) return;
    }
    const info = await attempt(api.getInfo);
    if (!info) return;
    dispatch({ type: "session.open", info });
    await Promise.all([listConversations(), show(conversation, false)]);
  }

  function begun({ turn, conversation }, known) {
    dispatch({ type: "asked", turn, conversation, known: { ...known, fresh: true } });
    followTurn(turn);
    listConversations();
  }

  /** Asks a question in the conversation that is shown. Gives whether it was accepted. */
  async function ask(question, { mode, rewrite, source }) {
    const conversation = getState().current;
    await Promise.all(adding);
    if (refused(conversation)) {
      dispatch({ type: "notice", text: "A file was not read. Take it from the list to ask without it." });
      return false;
    }
    const accepted = await attempt(
      () => api.ask({ question, mode, rewrite, ...(source && { source }), ...(conversation && { conversation }) }),
      async (error) => {
        if (error.code === "turn_under_way") await show(conversation, false); // asked from another window
        tell(error);
      },
    );
    if (!accepted) return false;
    if (!conversation) {
      window.history.pushState(null, "", `#c=${accepted.conversation}`);
      dispatch({ type: "shown", conversation: accepted.conversation });
    }
    begun(accepted, { asked: question, question, mode, source: source ?? null });
    return true;
  }

  const refused = (conversation) => getState().coming.some((one) => one.conversation === conversation && one.wrong);

  /** Adds files to the conversation that is shown, or to a new one, one after the other. */
  function addFiles(list) {
    let conversation = getState().current;
    if (!conversation) {
      const bytes = crypto.getRandomValues(new Uint8Array(8));
      conversation = `c${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
      window.history.pushState(null, "", `#c=${conversation}`);
      dispatch({ type: "shown", conversation });
    }
    const coming = [...list].map((file) => ({ key: (keys += 1), conversation, name: file.name, wrong: null, file }));
    dispatch({ type: "files.coming", coming: coming.map(({ file, ...one }) => one) });
    const work = coming.reduce((before, one) => before.then(() => addFile(one)), Promise.resolve()).then(listConversations);
    adding.add(work);
    work.finally(() => adding.delete(work));
  }

  async function addFile({ key, conversation, name, file }) {
    const refuse = (error) => dispatch({ type: "file.refused", key, wrong: sentence(error.message, false) });
    const { megabytes } = getState().info.files;
    if (file.size > megabytes * 2 ** 20) return refuse({ message: `${name} has more than ${megabytes} MiB` });
    const added = await attempt(() => api.addFile(conversation, file), refuse);
    if (added) dispatch({ type: "file.added", key, conversation, file: added });
  }

  async function removeFile(file) {
    const conversation = getState().current;
    const gone = await attempt(() => api.removeFile(conversation, file.id).then(() => true));
    if (gone) dispatch({ type: "file.removed", conversation, file });
    await listConversations();
  }

  /** Goes on from a step of the turn that a person wrote: {step, text, action?}. Gives what is wrong, or null. */
  async function fork(turn, change) {
    let wrong = "The service wants its token.";
    const accepted = await attempt(() => api.fork(turn.id, change), (error) => (wrong = error.message));
    if (!accepted) return wrong;
    begun(accepted, { asked: turn.asked, question: turn.question, mode: turn.mode, source: turn.source, parent: turn.id });
    return null;
  }

  /** Asks a turn's question once more, in its place of the conversation. */
  async function again(turn) {
    const accepted = await attempt(() => api.again(turn.id));
    if (accepted) begun(accepted, { asked: turn.asked, question: turn.question, mode: turn.mode, source: turn.source, parent: turn.parent });
  }

  async function stop(turn) {
    await attempt(() => api.cancel(turn));
  }

  /** Sends a verdict on the answer. "Wrong" without an answer keeps the answer that was given before. Returns whether the
   * verdict was kept. */
  async function judge(turn, said) {
    const before = said.right ? null : turn.feedback?.answer;
    const kept = await attempt(() => api.judge(turn.id, said).then(() => true));
    if (kept) dispatch({ type: "changed", turn: turn.id, change: { feedback: { answer: before, ...said } } });
    return Boolean(kept);
  }

  async function remove(conversation) {
    const gone = await attempt(() => api.deleteConversation(conversation).then(() => true));
    if (!gone) return;
    for (const turn of getState().order[conversation] ?? []) followed.get(turn)?.abort();
    const shown = getState().current === conversation;
    dispatch({ type: "deleted", conversation });
    if (shown) await show(null);
  }

  /** Gives a conversation a name; an empty one takes it back. */
  async function rename(conversation, title) {
    if (await attempt(() => api.nameConversation(conversation, title).then(() => true))) await listConversations();
  }

  /** The conversations that hold all the words, or null where none are given or they cannot be asked for. */
  async function find(words) {
    const found = words && (await attempt(() => api.findConversations(words)));
    return found ? found.conversations : null;
  }

  const notice = (text) => dispatch({ type: "notice", text });
  const say = (text) => dispatch({ type: "said", text });
  const dismiss = (key) => dispatch({ type: "file.dismissed", key });
  return {
    start, show, follow: followTurn, ask, fork, again, stop, judge, remove, rename, find, notice, say, addFiles, removeFile, dismiss,
  };
}
