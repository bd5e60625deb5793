([name, text]) => {
  const held = new DataTransfer();
  held.items.add(new File([text], name));
  const send = (type) => window.dispatchEvent(new DragEvent(type, { dataTransfer: held, cancelable: true }));
  send("dragover");
  setTimeout(() => send("drop"), 300);
}
