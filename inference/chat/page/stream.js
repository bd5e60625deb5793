// A turn's event stream, read until the turn is over. A connection that breaks is opened again, from the last event on.
import { ApiError, errorOf, eventsPath } from "./api.js";

/** Event types that end a turn. */
export const ENDS = new Set(["turn.finished", "turn.failed", "turn.cancelled"]);

const FIRST_WAIT = 500; // milliseconds before the first new try; doubled for each further one
const LONGEST_WAIT = 5000;
const SILENCE = 45000; // the service pings every 15 seconds: after this long the connection is dead

/**
 * Tells `onEvent` each event of the turn in order, and `onConnection` whether the service is heard (true) or not.
 * Ends with the turn or with `signal`. Throws ApiError where trying again is of no use (401, 404).
 *
 * A service that was started again tells the turn anew, from `turn.started` on.
 */
export async function follow(turn, { onEvent, onConnection, signal }) {
  let last = null;
  let wait = FIRST_WAIT;
  while (!signal.aborted) {
    try {
      const response = await opened(turn, last, signal);
      onConnection(true);
      for await (const message of messages(response.body)) {
        if (signal.aborted) return;
        wait = FIRST_WAIT;
        last = message.id ?? last;
        const event = JSON.parse(message.data);
        onEvent(event);
        if (ENDS.has(event.type)) return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status < 500) throw error;
    }
    onConnection(false);
    await pause(wait, signal);
    wait = Math.min(2 * wait, LONGEST_WAIT);
  }
}

async function opened(turn, last, signal) {
  const headers = last === null ? {} : { "Last-Event-ID": last };
  const response = await fetch(eventsPath(turn), { headers, signal, cache: "no-store" });
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** The messages of an event stream: {id, data}. Throws where nothing comes for SILENCE milliseconds. */
export async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let message = { data: "" };
  try {
    for (;;) {
      const { done, value } = await within(SILENCE, reader.read());
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) message.data += (message.data && "\n") + line.slice(5).trimStart();
        else if (line.startsWith("id:")) message.id = line.slice(3).trim();
        else if (line === "" && message.data) {
          yield message;
          message = { data: "" };
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the connection may be gone already
  }
}

function within(milliseconds, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("silence")), milliseconds);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

function pause(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
