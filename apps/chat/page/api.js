// The service's requests, one function each. Every failure is an ApiError whose message a person can read.
import { ApiError, requester } from "./request.js";

const { errorOf, request } = requester("the service", "is it running?");
export { ApiError, errorOf };

const turnPath = (turn) => `api/turns/${encodeURIComponent(turn)}`;
const conversationPath = (id) => `api/conversations/${encodeURIComponent(id)}`;

export const signIn = (token) => request("POST", "api/session", { token });
export const getInfo = () => request("GET", "api/info");
export const ask = (body) => request("POST", "api/turns", body);
export const cancel = (turn) => request("DELETE", turnPath(turn));
export const fork = (turn, body) => request("POST", `${turnPath(turn)}/fork`, body);
export const again = (turn) => request("POST", `${turnPath(turn)}/again`);
export const judge = (turn, feedback) => request("POST", `${turnPath(turn)}/feedback`, feedback);
export const getStep = (turn, step) => request("GET", `${turnPath(turn)}/steps/${step}`);
export const getConversations = () => request("GET", "api/conversations");
export const findConversations = (words) => request("GET", `api/conversations?${new URLSearchParams({ words })}`);
export const nameConversation = (id, title) => request("PATCH", conversationPath(id), { title });
export const exportPath = (id, form) => `${conversationPath(id)}/export?form=${form}`;
export const getConversation = (id) => request("GET", conversationPath(id));
export const deleteConversation = (id) => request("DELETE", conversationPath(id));
export const fileAt = (conversation, id) => `api/files/${encodeURIComponent(conversation)}/${encodeURIComponent(id)}`;
export const addFile = (conversation, file) =>
  request("POST", `api/files/${encodeURIComponent(conversation)}?${new URLSearchParams({ name: file.name })}`, file);
export const removeFile = (conversation, id) => request("DELETE", fileAt(conversation, id));
export const documentAt = (turn, n, page) => `${turnPath(turn)}/sources/${n}/file${page ? `#page=${page}` : ""}`;
export const eventsPath = (turn) => `${turnPath(turn)}/events`;
