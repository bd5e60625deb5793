// Where the page gets its data: from the server, or from the file that it stands in (`steprag view --out FILE.html`).
import { openPack } from "./pack.js";
import { ApiError, requester } from "./request.js";

export { ApiError };
const { request } = requester("the viewer", "does `steprag view` still run?");

/** `path` with its parameters: lists are repeated, what is not there is left out. */
function addressOf(path, query) {
  const pairs = Object.entries(query ?? {}).flatMap(([key, value]) =>
    (Array.isArray(value) ? value : [value]).filter((one) => one !== undefined && one !== null).map((one) => [key, one]));
  return pairs.length ? `${path}?${new URLSearchParams(pairs)}` : path;
}

const get = (path, query) => request("GET", addressOf(path, query));

const server = {
  signIn: (token) => request("POST", "api/session", { token }),
  runs: () => get("api/runs"),
  rows: (run, kind, file, from) => get(`api/rows/${kind}`, { run, file, from }),
  search: (kind, run, file, asked, from) => get(`api/search/${kind}`, { run, file, asked, from }),
  failures: (run) => get("api/failures", { run }),
  record: (kind, at) => get(`api/record/${kind}`, at),
  tree: (at) => get("api/tree", at),
  node: (at, node) => get("api/node", { ...at, node }),
  rewards: (at, options) => get("api/rewards", { ...at, ...options }),
  everyReward: (at) => get("api/every_reward", at),
  pairsOf: (tree) => get("api/pairs_of", { tree }),
  where: (tree, question) => get("api/where", { tree, question }),
  kinds: (run) => get("api/kinds", { run }),
  quality: (run) => get("api/quality", { run }),
  series: (run) => get("api/series", { run }),
  comparison: (runs) => get("api/comparison", { run: runs }),
  marks: (run) => get("api/marks", { run }),
  mark: (body) => request("POST", "api/marks", body),
};

/** A comparison of two runs, the other way round: the file holds one of both. */
function turned({ rows: [base, run], main }) {
  const gains = Object.entries(run.quality.gains).map(([name, { value, low, high, n }]) => [name, { value: -value, low: -high, high: -low, n }]);
  const less = { gain_em: -run.gain_em, gain_low: -run.gain_high, gain_high: -run.gain_low, gain_p: run.gain_p };
  return { rows: [run, { ...base, ...less, quality: { ...base.quality, gains: Object.fromEntries(gains) } }], main };
}

/** The same from a pack. `apps/viewer/export.py` names its pieces. */
const packed = (pack) => ({
  runs: () => pack.get("runs"),
  rows: (run, kind, file) => pack.get(`rows/${kind}/${run}/${file}`),
  record: async (kind, { run, file = 0, line }) => (await pack.get(`records/${kind}/${run}/${file}`))[line],
  tree: async ({ run, line }) => (await pack.get(`tree/${run}/${line}`)).tree,
  node: async ({ run, line }, node) => {
    const { tree, nodes } = await pack.get(`tree/${run}/${line}`);
    const parent = tree.nodes.parent[node];
    return { ...nodes[node], prompt: parent === null ? null : nodes[parent].next_prompt };
  },
  rewards: async ({ run, line }, { rule }) => {
    const told = (await pack.get(`tree/${run}/${line}`)).rewards[rule ?? (await pack.get("runs")).rule];
    if (told.fault) throw new Error(told.fault);
    return told;
  },
  everyReward: async ({ run, line }) => (await pack.get(`tree/${run}/${line}`)).rewards,
  pairsOf: async (tree) => (await pack.get("pairs_of"))[tree] ?? { pairs: [] },
  where: async (tree) => (await pack.get("where"))[tree] ?? Promise.reject(new Error("this file does not hold the pair's tree")),
  kinds: (run) => pack.get(`kinds/${run}`),
  quality: (run) => pack.get(`quality/${run}`),
  series: (run) => pack.get(`series/${run}`),
  comparison: async (runs) => {
    if (runs.length < 2 || pack.holds(`comparison/${runs.join("/")}`)) return pack.get(`comparison/${runs.join("/")}`);
    return turned(await pack.get(`comparison/${[...runs].reverse().join("/")}`));
  },
  marks: (run) => pack.get(`marks/${run}`),
});

const pack = openPack();
export const offline = pack !== null;
export const api = pack ? packed(pack) : server;
