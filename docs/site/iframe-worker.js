// The search of the site runs in a Worker, which browsers refuse to pages of a folder (file:): there, in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.body.appendChild(document.createElement("iframe"));
      frame.hidden = true;
      this.inside = frame.contentWindow;
      this.loaded = new Promise((resolve) => frame.addEventListener("load", resolve));
      addEventListener("message", ({ source, data }) => {
        if (source !== this.inside) return;
        const message = new MessageEvent("message", { data });
        this.dispatchEvent(message);
        this.onmessage?.(message);
      });
      const start = "postMessage = (message) => parent.postMessage(message, '*')";
      this.inside.document.open();
      this.inside.document.write(`<script>${start}</script><script src="${url}"></script>`);
      this.inside.document.close();
    }

    async postMessage(data) {
      await this.loaded;
      this.inside.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
    }
  };
}
