// Search runs in a worker, which a browser does not start for a page from the disk: there an empty frame takes its place.
// The theme would fetch a shim like this from another host whenever a page is looked at; tools/pages.py puts this one there.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.inner = frame.contentWindow
      this.inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = this.inner.document.createElement("script")
      script.src = new URL(url, location)
      this.ready = new Promise(done => { script.onload = done })
      this.inner.document.body.appendChild(script)
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
