// Requests a reply and reads it.
const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];

function headers() {
  const h = {"Content-Type": "application/json"};
  if ($("key").value) h.Authorization = "Bearer " + $("key").value;
  return h;
}
function requestBody(messages) {
  const b = {messages: [], stream: true, stream_options: {include_usage: true}, return_progress: true,
    enable_thinking: $("thinking").checked};
  if ($("system").value.trim()) b.messages.push({role: "system", content: $("system").value});
  b.messages.push(...messages);
  for (const id of NUMBERS) if ($(id).value !== "") b[id] = Number($(id).value);
  if ($("effort").value && b.enable_thinking) b.reasoning_effort = $("effort").value;
  if ($("tools").value.trim()) {
    try {
      b.tools = JSON.parse($("tools").value);
    } catch (error) {
      throw new Error("The tools are not valid JSON: " + error.message);
    }
  }
  return b;
}
// The error of a reply that is not a stream: the server's message, or the text of a proxy in between.
async function refusal(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return "The server answered " + response.status + ": " + text.slice(0, 200);
  }
}
const GONE = "The server cannot be reached. Check that dsv4 serve is running and that this device has a connection to " +
  "it, then try again.";
const BROKEN = "The connection to the server broke before the reply was complete. Check that dsv4 serve is running, " +
  "then try again.";
// Waits for a step of a request. If the network fails, browsers throw errors that have no use for readers.
async function inWords(step, words) {
  try {
    return await step;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(words);
  }
}
// Yields the chunks of a streamed reply as objects. Throws an error of the server, or if the stream ends too early.
async function* replyChunks(messages, signal) {
  const body = JSON.stringify(requestBody(messages));
  const post = {method: "POST", headers: headers(), body, signal};
  const response = await inWords(fetch("v1/chat/completions", post), GONE);
  if (!response.ok) throw new Error(await inWords(refusal(response), BROKEN));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await inWords(reader.read(), BROKEN);
    if (done) throw new Error("The connection ended before the reply was complete.");
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      const chunk = JSON.parse(line.slice(6));
      if (chunk.error) throw new Error(chunk.error.message);
      yield chunk;
    }
  }
}
// Adds the contents of a chunk to the message.
function takeDelta(message, delta) {
  const reasoning = delta.reasoning_content || delta.reasoning;
  if (reasoning) message.reasoning_content = (message.reasoning_content || "") + reasoning;
  if (delta.content) message.content += delta.content;
  for (const part of delta.tool_calls || []) {
    message.tool_calls = message.tool_calls || [];
    const call = message.tool_calls[part.index] = message.tool_calls[part.index] ||
      {id: "", type: "function", function: {name: "", arguments: ""}};
    call.id += part.id || "";
    call.function.name += part.function.name || "";
    call.function.arguments += part.function.arguments || "";
  }
}

// Tokens and times of a reply: the server's times if it reports them, otherwise times measured here.
class Meter {
  constructor() { this.begin = performance.now(); this.first = this.last = 0; this.count = this.prompt = 0; }
  take(chunk) {
    this.usage = chunk.usage || this.usage;
    this.timings = chunk.timings || this.timings;
    if (chunk.prompt_progress) this.prompt = chunk.prompt_progress.total;
    const delta = chunk.choices && chunk.choices.length && chunk.choices[0].delta;
    if (!delta || !(delta.content || delta.reasoning_content || delta.reasoning || delta.tool_calls)) return;
    this.count += 1;
    this.last = performance.now();
    this.first = this.first || this.last;
  }
  // Tokens of the prompt and the reply; 0: not known.
  used() {
    if (this.usage) return this.usage.prompt_tokens + this.usage.completion_tokens;
    return this.prompt ? this.prompt + this.count : 0;
  }
  text() {
    const u = this.usage, t = this.timings, parts = [];
    const tokens = t ? t.predicted_n : u ? u.completion_tokens : this.count;
    const seconds = (this.last - this.first) / 1000;
    const rate = t ? t.predicted_per_second : tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : 0;
    if (tokens) parts.push(tokens + (tokens === 1 ? " token" : " tokens"));
    if (rate) parts.push(rate.toFixed(1) + " per second");
    if (t && t.queue_ms >= 100) parts.push("waited " + shortTime(t.queue_ms));
    if (t) parts.push("prompt read in " + shortTime(t.prompt_ms));
    else if (this.first) parts.push("first after " + shortTime(this.first - this.begin));
    if (u) {
      const cached = (u.prompt_tokens_details || {}).cached_tokens || 0;
      parts.push(u.prompt_tokens + " prompt tokens, " + cached + " cached tokens");
      const accepted = (u.completion_tokens_details || {}).accepted_prediction_tokens || (t && t.draft_n_accepted);
      if (accepted) parts.push(accepted + (t && t.draft_n ? " of " + t.draft_n : "") + " draft tokens accepted");
    }
    return parts.join(", ");
  }
}
const shortTime = ms => (ms < 1000 ? Math.round(ms) + " ms" : (ms / 1000).toFixed(1) + " s");
