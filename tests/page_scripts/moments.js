async ([run, line]) => {
  const { growthOf, momentAt } = await import("/page/growth.js");
  const tree = await (await fetch(`/api/tree?run=${run}&line=${line}`)).json();
  const growth = growthOf(tree);
  const at = (id) => momentAt(growth, tree.nodes, id);
  return {
    ...growth, said: tree.iterations, visits: tree.nodes.visits, value: tree.nodes.value,
    ends: growth.iterations.map((one) => ({ ...one, ...at(one.last) })), last: at(tree.nodes.visits.length - 1),
  };
}
