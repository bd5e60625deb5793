async () => {
  const { useRows } = await import("/page/loading.js");
  const { html } = await import("/page/html.js");
  const { render } = await import("/vendor/preact/preact.js");
  const drawn = [];
  const Rows = () => {
    const { rows, complete } = useRows("run", "trees", 1, "");
    drawn.push(rows.length);
    return html`<p id="rows">${complete ? rows.length : ""}</p>`;
  };
  window.drawn = drawn;
  const place = document.body.appendChild(document.createElement("div"));
  render(html`<${Rows} />`, place);
}
