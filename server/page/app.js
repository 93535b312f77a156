// The shown conversation, the reply in progress, and the actions of buttons and keys.
let conversation = newConversation();
let abort = null;  // stops the reply in progress; null: there is none
const SETTINGS = [...NUMBERS, "effort", "system", "tools"];
const LEFT_EARLY = "The page was left before the reply was complete.";

function nearEnd() { const s = $("scroll"); return s.scrollHeight - s.scrollTop - s.clientHeight < 80; }
function toEnd() { $("scroll").scrollTop = $("scroll").scrollHeight; }

const ACTIONS = {
  edit(index, text) {
    if (abort) return;
    addNode(conversation, conversation.nodes[index].parent, {role: "user", content: text});
    reply();
  },
  show(index) {
    if (abort) return;
    showBranch(conversation, index);
    keep();
    render();
  },
  retry(index) {
    if (abort || index < 0) return;
    backTo(conversation, index);
    reply();
  },
};
const retryLast = () => ACTIONS.retry(conversation.leaf);

function render() {
  const path = branch(conversation), last = path.length - 1;
  $("log").replaceChildren(...path.map(index => messageCard(conversation, index, ACTIONS)));
  if (last < 0) $("log").append(emptyCard($("model").textContent, text => { $("input").value = text; send(); }));
  const message = last >= 0 && conversation.nodes[path[last]].message;
  if (!abort && message && message.role === "assistant" && message.tool_calls) {
    $("log").append(resultsCard(message, results => {
      results.forEach(result => addNode(conversation, conversation.leaf, result));
      reply();
    }));
  }
  // The page was left between a message and its reply.
  if (!abort && message && message.role !== "assistant") {
    const box = element("div", "message assistant");
    box.append(failure("There is no reply yet.", retryLast));
    $("log").append(box);
  }
  toEnd();
}
function busy(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
  $("new").disabled = on;
  document.querySelectorAll("#list button").forEach(b => { b.disabled = on; });
}
let keeping = Promise.resolve();  // writes one after the other
function keep() {
  const kept = conversation;
  keeping = keeping.then(() => saveConversation(kept)).then(() => {
    if (kept !== conversation) return;
    history.replaceState(null, "", "#" + kept.id);
    showList();
  }).catch(error => { $("hint").textContent = "This conversation could not be saved: " + error.message; });
  return keeping;
}

// Draws a reply while it arrives, using at most a fifth of the time, however long the reply is.
class Drawing {
  constructor(box, node) { Object.assign(this, {box, node, next: 0, saved: performance.now()}); }
  draw(meter) {
    const begin = performance.now();
    if (begin < this.next) return;
    const stay = nearEnd();
    this.node.stats = meter.text();
    this.box.show(true);
    if (stay) toEnd();
    this.next = performance.now() + Math.max(50, 4 * (performance.now() - begin));
    if (begin - this.saved < 2000) return;
    this.saved = begin;
    keep();
  }
}
async function receive(node, box, meter, signal) {
  const drawing = new Drawing(box, node);
  let finish = "";
  for await (const chunk of replyChunks(messagesOf(conversation), signal)) {
    meter.take(chunk);
    if (chunk.prompt_progress && !meter.count) box.progress(chunk.prompt_progress);
    const choice = chunk.choices && chunk.choices[0];
    if (!choice) continue;
    takeDelta(node.message, choice.delta || {});
    finish = choice.finish_reason || finish;
    if (meter.count) drawing.draw(meter);
  }
  return finish === "length" ? "The reply is incomplete: it reached Max tokens or the context limit." : "";
}
async function reply() {
  const node = addNode(conversation, conversation.leaf, {role: "assistant", content: ""});
  abort = new AbortController();
  busy(true);
  render();
  node.error = LEFT_EARLY;
  keep();
  const meter = new Meter();
  try {
    node.error = await receive(node, $("log").lastChild, meter, abort.signal);
  } catch (error) {
    node.error = error.name === "AbortError" ? "Stopped." : error.message;
  }
  if (node.error) delete node.message.tool_calls;  // they may be incomplete
  node.stats = meter.text();
  abort = null;
  busy(false);
  render();
  await keep();
  if (!BY_TOUCH) $("input").focus();
}
function send() {
  const text = $("input").value.trim();
  if (!text || abort) return;
  $("input").value = "";
  fitHeight($("input"));
  addNode(conversation, conversation.leaf, {role: "user", content: text});
  reply();
}

// ---- The list of conversations

function show(other) {
  if (abort) return;
  conversation = other;
  history.replaceState(null, "", other.version ? "#" + other.id : location.pathname);
  if (matchMedia("(max-width: 45rem)").matches) showSide(false);
  render();
  showList();
  if (!BY_TOUCH) $("input").focus();
}
async function openConversation(id) {
  const found = await loadConversation(id).catch(() => null);
  show(found || newConversation());
}
async function showList() {
  const items = (await listConversations()).map(({id, title}) => {
    const li = element("li", id === conversation.id ? "current" : "");
    const remove = button("×", "delete", async () => {
      if (!confirm("Delete this conversation?")) return;
      await deleteConversation(id);
      if (id === conversation.id) show(newConversation());
      else showList();
    });
    remove.setAttribute("aria-label", "Delete " + title);
    const name = button(title, "title", () => openConversation(id));
    name.title = title;
    li.append(name, remove);
    li.querySelectorAll("button").forEach(b => { b.disabled = abort !== null; });
    return li;
  });
  $("list").replaceChildren(...items);
}
function showSide(on) {
  document.body.classList.toggle("side", on);
  $("menu").setAttribute("aria-expanded", String(on));
}

// ---- Buttons and keys

$("ask").onsubmit = event => { event.preventDefault(); send(); };
$("stop").onclick = () => abort && abort.abort();
$("new").onclick = () => show(newConversation());
$("menu").onclick = () => showSide(!document.body.classList.contains("side"));
$("hide").onclick = () => showSide(false);
$("toggle").onclick = () => ($("settings").open ? $("settings").close() : $("settings").showModal());
$("done").onclick = () => $("settings").close();
$("theme").onclick = () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("dsv4.theme", root.dataset.theme);
};
$("input").oninput = () => fitHeight($("input"));
$("input").onkeydown = event => { if (isSendKey(event)) { event.preventDefault(); send(); } };
const KEYS = {k: () => $("new").click(), l: () => $("menu").click(), s: () => $("toggle").click(), r: retryLast};
document.addEventListener("keydown", event => {
  if (event.key === "Escape" && abort && !$("settings").open) abort.abort();
  const letter = Object.keys(KEYS).find(key => isAltKey(event, key));
  if (!letter) return;
  event.preventDefault();
  KEYS[letter]();
});
$("hint").textContent = "Enter sends, Shift+Enter starts a new line, Esc stops; " + altName("r") + " regenerates, " +
  altName("k") + " new conversation, " + altName("l") + " list, " + altName("s") + " settings";

// This browser stores the settings, except the API key.
for (const id of SETTINGS) {
  $(id).value = localStorage.getItem("dsv4." + id) || "";
  $(id).addEventListener("change", () => localStorage.setItem("dsv4." + id, $(id).value));
}
$("thinking").checked = localStorage.getItem("dsv4.thinking") !== "off";
$("thinking").onchange = () => localStorage.setItem("dsv4.thinking", $("thinking").checked ? "on" : "off");
if (localStorage.getItem("dsv4.theme")) document.documentElement.dataset.theme = localStorage.getItem("dsv4.theme");
fetch("v1/models", {headers: headers()}).then(r => r.json()).then(models => {
  $("model").textContent = models.data[0].id;
  document.querySelectorAll(".empty h2").forEach(e => { e.textContent = emptyTitle(models.data[0].id); });
}).catch(() => {});
addEventListener("hashchange", () => openConversation(location.hash.slice(1)));
if (matchMedia("(min-width: 70rem)").matches) showSide(true);
fitHeight($("input"));
if (location.hash.length > 1) {
  openConversation(location.hash.slice(1));
} else {
  render();
  showList();
}
