async ([run, line]) => {
  const { bestPath, growthOf, momentAt } = await import("/page/growth.js");
  const { shapeOf } = await import("/page/shape.js");
  const tree = await (await fetch(`/api/tree?run=${run}&line=${line}`)).json();
  const growth = growthOf(tree);
  const at = (id) => momentAt(growth, tree.nodes, id);
  return {
    ...growth, scores: bestPath(shapeOf(tree.nodes).children, at(tree.nodes.visits.length - 1)).map((id) => tree.nodes.prediction_f1[id]),
    best: Math.max(...tree.nodes.prediction_f1), said: tree.iterations, visits: tree.nodes.visits, value: tree.nodes.value,
    ends: growth.iterations.map((one) => ({ ...one, ...at(one.last) })), last: at(tree.nodes.visits.length - 1),
  };
}
