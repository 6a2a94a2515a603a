// Browsers give pages that are opened from a folder no workers, and the search of the site needs one.
// This worker runs in a hidden frame of the page.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.documentElement.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = data => this.emit(new MessageEvent("message", { data: structuredClone(data) }))
      this.ready = new Promise(done => {
        const script = inside.document.createElement("script")
        script.src = new URL(address, location.href).href
        script.onload = done
        script.onerror = () => this.emit(new Event("error"))
        inside.document.documentElement.append(script)
      })
    }

    emit(event) {
      this[`on${event.type}`]?.(event)
      this.dispatchEvent(event)
    }

    async postMessage(data) {
      await this.ready
      const inside = this.frame.contentWindow
      inside?.dispatchEvent(new inside.MessageEvent("message", { data: structuredClone(data) }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
