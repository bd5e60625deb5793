// The service's requests, one function each. Every failure is an ApiError whose message a person can read.

/** A refusal by the service, or its silence: `status` is 0 where it did not answer at all. */
export class ApiError extends Error {
  constructor(status, code, message, retryAfter = null) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

/** The error that a response that is not OK stands for. */
export async function errorOf(response) {
  const after = Number(response.headers.get("Retry-After")) || null;
  let said = {};
  try {
    said = (await response.json()).error ?? {};
  } catch {
    // no JSON: the status has to do
  }
  const message = said.message ?? `the service answered ${response.status}`;
  return new ApiError(response.status, said.code ?? "http", message, after);
}

async function request(method, path, body) {
  const options = { method, cache: "no-store" };
  if (body !== undefined) {
    options.headers = { "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new ApiError(0, "no_service", "the service does not answer; is it running?");
  }
  if (!response.ok) throw await errorOf(response);
  return response.status === 204 ? null : response.json();
}

const turnPath = (turn) => `/api/turns/${encodeURIComponent(turn)}`;
const conversationPath = (id) => `/api/conversations/${encodeURIComponent(id)}`;

export const signIn = (token) => request("POST", "/api/session", { token });
export const getInfo = () => request("GET", "/api/info");
export const ask = (body) => request("POST", "/api/turns", body);
export const cancel = (turn) => request("DELETE", turnPath(turn));
export const fork = (turn, step, text) => request("POST", `${turnPath(turn)}/fork`, { step, text });
export const judge = (turn, feedback) => request("POST", `${turnPath(turn)}/feedback`, feedback);
export const getStep = (turn, step) => request("GET", `${turnPath(turn)}/steps/${step}`);
export const getConversations = () => request("GET", "/api/conversations");
export const getConversation = (id) => request("GET", conversationPath(id));
export const deleteConversation = (id) => request("DELETE", conversationPath(id));
export const eventsPath = (turn) => `${turnPath(turn)}/events`;
