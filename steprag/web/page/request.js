// Requests to the service that the page came from. Every failure is an ApiError whose message a person can read.

/** A refusal by the service, or its silence: `status` is 0 where it did not answer at all. */
export class ApiError extends Error {
  constructor(status, code, message, retryAfter = null) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

/** What asks the service of that `name`; `hint` is a person's next thought where it is silent. */
export const requester = (name, hint) => {
  /** The error that a response that is not OK stands for. */
  async function errorOf(response) {
    const after = Number(response.headers.get("Retry-After")) || null;
    let said = {};
    try {
      said = (await response.json()).error ?? {};
    } catch {
      // no JSON: the status has to do
    }
    return new ApiError(response.status, said.code ?? "http", said.message ?? `${name} answered ${response.status}`, after);
  }

  /** The JSON of the reply; null where it has none. `body`: a value that goes as JSON, or a file. Throws ApiError. */
  async function request(method, path, body) {
    const options = { method, cache: "no-store" };
    if (body !== undefined) {
      const file = body instanceof Blob;
      options.headers = { "Content-Type": file ? "application/octet-stream" : "application/json" };
      options.body = file ? body : JSON.stringify(body);
    }
    let response;
    try {
      response = await fetch(path, options);
    } catch {
      throw new ApiError(0, "no_service", `${name} does not answer; ${hint}`);
    }
    if (!response.ok) throw await errorOf(response);
    return response.status === 204 ? null : response.json();
  }

  return { errorOf, request };
};
