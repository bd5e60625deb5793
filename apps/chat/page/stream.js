// A turn's event stream, followed until the turn is over. The browser opens a connection that breaks again by itself,
// with its cookie and the last event's id; a restarted service sends the turn from `turn.started` again.
import { ApiError, errorOf, eventsPath } from "./api.js";

/** Event types that end a turn. */
export const ENDS = new Set(["turn.finished", "turn.failed", "turn.cancelled"]);

/**
 * Tells `onEvent` each event of the turn in order, and `onConnection` whether the service is heard (true) or not.
 * Ends with the turn or with `signal`. Throws ApiError where the service answers with an error: nothing is tried again.
 */
export function follow(turn, { onEvent, onConnection, signal }) {
  return new Promise((resolve, reject) => {
    const source = new EventSource(eventsPath(turn));
    const end = (settle, value) => (source.close(), settle(value));
    signal.addEventListener("abort", () => end(resolve), { once: true });
    source.onopen = () => onConnection(true);
    source.onmessage = ({ data }) => {
      const event = JSON.parse(data);
      onEvent(event);
      if (ENDS.has(event.type)) end(resolve);
    };
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) refusal(turn).then((error) => end(reject, error));
      else onConnection(false);
    };
  });
}

/** Why the service does not tell the turn; an EventSource does not say. */
async function refusal(turn) {
  const asked = new AbortController();
  try {
    const response = await fetch(eventsPath(turn), { signal: asked.signal, cache: "no-store" });
    if (!response.ok) return await errorOf(response);
  } catch {
    // it does not answer at all
  } finally {
    asked.abort();
  }
  return new ApiError(0, "no_service", "the service broke off; load the page again");
}
