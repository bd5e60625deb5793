async () => {
  const { VirtualList } = await import("/page/virtual.js");
  const { html, useState } = await import("/page/html.js");
  const { render } = await import("/vendor/preact/preact.js");
  const List = () => {
    const [active, setActive] = useState(-1);
    return html`<${VirtualList} id="long" count=${1000000} height=${76} active=${active} onActive=${setActive}
      rowRole="option" role="listbox" aria-label="Long" style=${{ height: "400px" }} row=${(index) => index} />`;
  };
  const place = document.createElement("div");
  document.body.prepend(place);
  render(html`<${List} />`, place);
}
