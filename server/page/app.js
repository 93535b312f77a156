// The shown conversation, and the actions of buttons and keys.
let conversation = newConversation();
const SETTINGS = [...NUMBERS, "effort", "system", "tools"];

function nearEnd() { const s = $("scroll"); return s.scrollHeight - s.scrollTop - s.clientHeight < 80; }
function toEnd() { $("scroll").scrollTop = $("scroll").scrollHeight; }
function notify(text, isGood = false) {
  $("notice").hidden = !text;
  $("notice").classList.toggle("good", isGood);
  $("notice").firstChild.textContent = text;
}
const isBusy = () => replies.has(conversation);

const ACTIONS = {
  edit(index, text) {
    if (!mayReply()) return;
    const {parent, files} = conversation.nodes[index];
    addNode(conversation, parent, {role: "user", content: text}, files);
    reply();
  },
  show(index) {
    if (isBusy()) return;
    showBranch(conversation, index);
    keep(conversation);
    render();
  },
  retry(index) {
    if (index < 0 || !mayReply()) return;
    backTo(conversation, index);
    reply();
  },
};
const retryLast = () => ACTIONS.retry(conversation.leaf);

function render() {
  const path = branch(conversation), running = replies.get(conversation);
  const isLive = index => running && index === conversation.leaf;
  $("log").replaceChildren(...path.map(index => messageCard(conversation, index, ACTIONS, isLive(index))));
  if (!path.length) $("log").append(emptyCard($("model").textContent, text => { $("input").value = text; send(); }));
  if (running) running.showIn($("log").lastChild);
  else showWanted();
  showState();
  showGauge(running ? running.meter.used() || tokensOf(conversation) : tokensOf(conversation));
  toEnd();
}
// Shows below the messages what the conversation needs: results of calls, or a reply.
function showWanted() {
  const message = conversation.leaf >= 0 && conversation.nodes[conversation.leaf].message;
  if (!message) return;
  if (message.tool_calls) {
    $("log").append(resultsCard(message, results => {
      if (!mayReply()) return;
      results.forEach(result => addNode(conversation, conversation.leaf, result));
      reply();
    }));
  }
  if (message.role === "assistant") return;
  const box = element("div", "message assistant");  // the page was left between a message and its reply
  box.append(failure("There is no reply yet.", retryLast));
  $("log").append(box);
}
function showState() {
  $("send").hidden = isBusy();
  $("stop").hidden = !isBusy();
}
let keeping = Promise.resolve();  // writes one after the other
function keep(kept = conversation, updated = Date.now()) {
  keeping = keeping.then(() => (kept.deleted ? null : saveConversation(kept, updated))).then(() => {
    if (kept === conversation && !kept.deleted) history.replaceState(null, "", "#" + kept.id);
    showList();
  }).catch(error => notify("This conversation could not be saved: " + error.message));
  return keeping;
}

// A conversation has one reply at a time, and all have MOST_REPLIES.
function mayReply() {
  if (isBusy()) return false;
  if (replies.size < MOST_REPLIES) return true;
  notify(MOST_REPLIES + " replies are being written: wait for one, or stop one.");
  return false;
}
async function reply() {
  const started = new Reply(conversation);
  notify("");
  render();
  if (!contextSize) loadModel();
  await started.run();
  if (started.isShown()) finish(started);
  await keep(started.conversation);
}
function finish(ended) {
  const stay = nearEnd();
  ended.box.show(false);
  showWanted();
  showState();
  showGauge(tokensOf(conversation));
  if (stay) toEnd();
  if (!BY_TOUCH && document.activeElement === document.body) $("input").focus();
}
function send() {
  const text = $("input").value.trim();
  if ((!text && !attached.length) || !mayReply()) return;
  $("input").value = "";
  fitHeight($("input"));
  addNode(conversation, conversation.leaf, {role: "user", content: text}, takeAttached());
  reply();
}
function show(other) {
  conversation = other;
  history.replaceState(null, "", other.version ? "#" + other.id : location.pathname);
  if (matchMedia("(max-width: 45rem)").matches) showSide(false);
  render();
  showList();
  if (!BY_TOUCH) $("input").focus();
}
let opening = 0;  // the latest request to open a conversation
async function openConversation(id) {
  const asked = opening += 1;
  const found = runningConversation(id) || await loadConversation(id).catch(() => null);
  if (asked === opening) show(found || newConversation());
}
function showSide(on) {
  document.body.classList.toggle("side", on);
  $("menu").setAttribute("aria-expanded", String(on));
}
// The model's name and context. A server with keys answers after the key is set.
async function loadModel() {
  try {
    const [model] = (await (await fetch("v1/models", {headers: headers()})).json()).data;
    $("model").textContent = model.id;
    contextSize = model.max_model_len || 0;
    document.querySelectorAll(".empty h2").forEach(e => { e.textContent = emptyTitle(model.id); });
    if (!isBusy()) showGauge(tokensOf(conversation));
  } catch {  // a reply reports what is wrong
  }
}

// ---- Buttons and keys

$("ask").onsubmit = event => { event.preventDefault(); send(); };
$("stop").onclick = () => isBusy() && replies.get(conversation).stop();
$("new").onclick = () => { opening += 1; show(newConversation()); };
$("menu").onclick = () => showSide(!document.body.classList.contains("side"));
$("hide").onclick = () => showSide(false);
$("toggle").onclick = () => ($("settings").open ? $("settings").close() : $("settings").showModal());
$("done").onclick = () => $("settings").close();
$("forget").onclick = () => notify("");
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
  if (event.key === "Escape" && isBusy() && !$("settings").open) replies.get(conversation).stop();
  const letter = Object.keys(KEYS).find(key => isAltKey(event, key));
  if (!letter) return;
  event.preventDefault();
  KEYS[letter]();
});
$("hint").textContent = "Enter sends, Shift+Enter starts a new line, Esc stops; " + altName("r") + " regenerates, " +
  altName("k") + " new conversation, " + altName("l") + " list, " + altName("s") + " settings";
listenForFiles();
listenForList();

// This browser stores the settings, except the API key.
for (const id of SETTINGS) {
  $(id).value = localStorage.getItem("dsv4." + id) || "";
  $(id).addEventListener("change", () => localStorage.setItem("dsv4." + id, $(id).value));
}
$("thinking").checked = localStorage.getItem("dsv4.thinking") !== "off";
$("thinking").onchange = () => localStorage.setItem("dsv4.thinking", $("thinking").checked ? "on" : "off");
if (localStorage.getItem("dsv4.theme")) document.documentElement.dataset.theme = localStorage.getItem("dsv4.theme");
$("key").onchange = loadModel;
loadModel();
addEventListener("hashchange", () => openConversation(location.hash.slice(1)));
if (matchMedia("(min-width: 70rem)").matches) showSide(true);
fitHeight($("input"));
if (location.hash.length > 1) {
  openConversation(location.hash.slice(1));
} else {
  render();
  showList();
}
