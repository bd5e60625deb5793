// The data of a page that stands alone in a file: named pieces of JSON, compressed, unpacked when they are asked for.

export class Pack {
  constructor(pieces) {
    this.pieces = pieces;
    this.opened = new Map();
  }

  holds(name) {
    return Object.hasOwn(this.pieces, name);
  }

  /** The piece of that name; throws where the file does not hold it. */
  get(name) {
    if (!this.opened.has(name)) this.opened.set(name, this.unpack(name));
    return this.opened.get(name);
  }

  async unpack(name) {
    if (!this.holds(name)) throw new Error("this file does not hold that");
    const bytes = Uint8Array.from(atob(this.pieces[name]), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }
}

/** The pack of this page; null where a server answers. */
export function openPack() {
  const element = document.getElementById("pack");
  return element ? new Pack(JSON.parse(element.textContent)) : null;
}
