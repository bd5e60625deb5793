(id) => {
  const { view, scene, canvas } = document.querySelector("canvas").stage;
  const box = canvas.getBoundingClientRect();
  return [box.x + scene.shape.x[id] * view.scale + view.x, box.y + scene.shape.y[id] * view.scale + view.y];
}
