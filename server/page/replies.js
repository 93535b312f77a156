// Replies in progress. Each belongs to its conversation, and continues while the page shows another one.
const MOST_REPLIES = 4;  // a browser opens six connections to a server, and the page needs some
const LEFT_EARLY = "The page was left before the reply was complete.";
const replies = new Map();  // the reply in progress, by its conversation

const runningReply = id => [...replies.values()].find(reply => reply.conversation.id === id);
const runningConversation = id => (runningReply(id) || {}).conversation;

class Reply {
  constructor(conversation) {
    Object.assign(this, {conversation, abort: new AbortController(), meter: new Meter(), box: null, progress: null});
    this.node = addNode(conversation, conversation.leaf, {role: "assistant", content: ""});
    this.next = this.timer = 0;
    this.saved = performance.now();
    replies.set(conversation, this);
  }
  isShown() { return this.conversation === conversation; }
  // `box`: the card that shows this reply.
  showIn(box) {
    this.box = box;
    if (this.progress && !this.meter.count) box.progress(this.progress);
  }
  stop() { this.abort.abort(); }
  // Stops without keeping anything: the conversation is deleted.
  drop() {
    this.conversation.deleted = true;
    this.stop();
  }
  // Draws while the reply arrives, using at most a fifth of the time, however long the reply is.
  draw() {
    const begin = performance.now();
    if (begin < this.next) {
      this.timer ||= setTimeout(() => this.drawLater(), this.next - begin);
      return;
    }
    this.node.stats = this.meter.text();
    if (this.isShown()) {
      const stay = nearEnd();
      this.box.show(true);
      showGauge(this.meter.used());
      if (stay) toEnd();
    }
    this.next = performance.now() + Math.max(50, 4 * (performance.now() - begin));
    if (begin - this.saved < 2000) return;
    this.saved = begin;
    keep(this.conversation);
  }
  // The last piece before a pause is drawn, too.
  drawLater() {
    this.timer = 0;
    if (replies.get(this.conversation) === this) this.draw();
  }
  take(chunk) {
    this.meter.take(chunk);
    if (chunk.prompt_progress && !this.meter.count) {
      this.progress = chunk.prompt_progress;
      if (this.isShown()) this.box.progress(this.progress);
    }
    const choice = chunk.choices && chunk.choices[0];
    if (!choice) return;
    takeDelta(this.node.message, choice.delta || {});
    this.finish = choice.finish_reason || this.finish;
    if (this.meter.count) this.draw();
  }
  async receive() {
    const request = messagesOf(this.conversation);
    for await (const chunk of replyChunks(request, this.abort.signal)) this.take(chunk);
    return this.finish === "length" ? "The reply is incomplete: it reached Max tokens or the context limit." : "";
  }
  async run() {
    this.node.error = LEFT_EARLY;
    keep(this.conversation);
    try {
      this.node.error = await this.receive();
    } catch (error) {
      this.node.error = error.name === "AbortError" ? "Stopped." : error.message;
    }
    if (this.node.error) delete this.node.message.tool_calls;  // they may be incomplete
    this.node.stats = this.meter.text();
    this.node.tokens = this.meter.used();
    replies.delete(this.conversation);
  }
}
