// A tree's shape on the plane: d3's tidy layout, from left (the question) to right (the answers). Plain data, no drawing.
import { hierarchy, tree as tidy } from "../vendor/d3-hierarchy/d3-hierarchy.js";

const ROW = [24, 44]; // between siblings, at least and at most
const COLUMN = [88, 230]; // between depths

/** The places of every node by id in rows and columns, and the order of the nodes from top to bottom. */
export function shapeOf(nodes) {
  const size = nodes.parent.length;
  const children = Array.from({ length: size }, () => []);
  for (let id = 1; id < size; id++) children[nodes.parent[id]].push(id);
  const root = tidy().nodeSize([1, 1])(hierarchy(0, (id) => children[id]));
  const rows = new Float64Array(size);
  let [first, last, depth] = [Infinity, -Infinity, 1];
  const order = [];
  root.eachBefore((place) => {
    order.push(place.data);
    rows[place.data] = place.x;
    first = Math.min(first, place.x);
    last = Math.max(last, place.x);
    depth = Math.max(depth, place.depth);
  });
  return { rows, depths: nodes.depth, children, order, first, last, depth };
}

const within = ([least, most], value) => Math.min(most, Math.max(least, value));

/** The shape with `x` and `y` of every node in pixels, as near to that room as rows and columns may come. */
export function spread(shape, width, height) {
  const { rows, depths, first, last, depth } = shape;
  const row = within(ROW, height / Math.max(1, last - first));
  const tall = (last - first) * row;
  // the columns of a tall tree spread, so that the whole has the canvas's shape
  const column = tall > 2 * height ? Math.max(COLUMN[1], (tall * width) / height / depth) : within(COLUMN, width / depth);
  return {
    ...shape, column, width: depth * column, top: first * row, height: Math.max(tall, row),
    x: Float64Array.from(depths, (at) => at * column), y: rows.map((at) => at * row),
  };
}

/** The ids from the root to a node, both included. */
export function pathTo(nodes, id) {
  const path = [];
  for (let at = id; at !== null && at !== undefined; at = nodes.parent[at]) path.push(at);
  return path.reverse();
}
