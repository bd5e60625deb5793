// How a search grew, read off its finished tree. Nodes stand in the order in which they were made. What a step itself was given
// is its visits and rewards less those of its children, and an iteration gives what it has to give when it lands.

/**
 * `iterations` in order: `leaf`, the node that was expanded; `first` and `last`, the nodes that it made. `own`: what each node
 * itself was given: `visits` and the `total` of its rewards. `whole`: whether the counts of the tree add up, so that values can be
 * told for every moment; `late`: nodes that were given more than one reward, all of them shown with the first.
 */
export function growthOf({ nodes, iterations }) {
  const size = nodes.parent.length;
  const own = { visits: Float64Array.from(nodes.visits), total: Float64Array.from(nodes.visits, (seen, id) => seen * (nodes.value[id] ?? 0)) };
  for (let id = size - 1; id > 0; id--) {
    own.visits[nodes.parent[id]] -= nodes.visits[id];
    own.total[nodes.parent[id]] -= nodes.visits[id] * (nodes.value[id] ?? 0);
  }
  const whole = own.visits.every((seen, id) => seen > 0 || (seen === 0 && Math.abs(own.total[id]) < 1e-6));
  return { own, whole, late: own.visits.filter((seen) => seen > 1).length, iterations: iterationsOf(nodes, iterations) };
}

/**
 * The requests for children, and which of them one iteration made: it expands a leaf, and then plays on from the first open step
 * of what it got. `said` is how many iterations the tree says there were: where they are as many as the requests, none played on.
 */
function iterationsOf(nodes, said) {
  const requests = [];
  for (let id = 1; id < nodes.parent.length; id++) {
    const last = requests.at(-1);
    if (!last || nodes.asked[id] || nodes.parent[id] !== last.leaf) requests.push({ leaf: nodes.parent[id], first: id, last: id });
    else last.last = id;
  }
  if (said && requests.length <= said) return requests;
  const found = [];
  let open = -1; // the step from which the iteration plays on
  for (const request of requests) {
    if (request.leaf === open) found.at(-1).last = request.last;
    else found.push({ ...request });
    open = -1;
    for (let id = request.last; id >= request.first; id--) if (!nodes.terminal[id]) open = id;
  }
  return found;
}

/** The iteration that made a node: its place among the iterations, -1 for the root. */
export function iterationAt(iterations, id) {
  let [low, high] = [0, iterations.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (iterations[middle].first <= id) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/**
 * Visits and values when the node `upTo` was the last one made. What an iteration gives counts from its last node on. At the end they
 * are the tree's own.
 */
export function momentAt(growth, nodes, upTo) {
  const { own, iterations, whole } = growth;
  if (!whole || upTo >= nodes.parent.length - 1) return { visits: nodes.visits, values: nodes.value };
  const place = iterationAt(iterations, upTo);
  const landed = place < 0 ? 0 : iterations[place].last <= upTo ? iterations[place].last : iterations[place].first - 1;
  const visits = new Array(nodes.parent.length).fill(0);
  const total = new Float64Array(nodes.parent.length);
  for (let id = landed; id >= 0; id--) {
    visits[id] += own.visits[id];
    total[id] += own.total[id];
    if (id === 0) break;
    visits[nodes.parent[id]] += visits[id];
    total[nodes.parent[id]] += total[id];
  }
  return { visits, values: visits.map((seen, id) => (seen ? total[id] / seen : null)) };
}

/** The ids of the best path, from the root: of children the one that earned most in all, then the most visited, then the older. */
export function bestPath(children, { visits, values }) {
  const earned = (id) => visits[id] * (values[id] ?? 0);
  const path = [0];
  for (;;) {
    let best = -1;
    for (const id of children[path.at(-1)]) {
      if (!visits[id]) continue;
      if (best < 0 || earned(id) > earned(best) || (earned(id) === earned(best) && visits[id] > visits[best])) best = id;
    }
    if (best < 0) return path;
    path.push(best);
  }
}
