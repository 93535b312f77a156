// Elements that show messages.
const NAMES = {system: "System", user: "You", assistant: "Model", tool: "Tool result"};

// A message of the conversation. `actions` has the functions of its buttons: edit, retry, show (a branch). `live`: it
// is a reply that is not complete.
function messageCard(conversation, index, actions, live) {
  const node = conversation.nodes[index], {message, files} = node;
  const box = element("div", "message " + message.role), role = element("div", "role");
  role.append(element("span", "", NAMES[message.role]), branchButtons(conversation, index, actions));
  box.append(role);
  if (message.role === "assistant") {
    fillReply(box, node, () => actions.retry(index), live);
  } else {
    if (files) box.append(fileChips(files));
    box.append(element("div", "text plain", message.content));
    const edit = () => editCard(box, message.content, text => actions.edit(index, text), Boolean(files));
    if (message.role === "user") role.append(button("Edit", "quiet", edit));
    role.append(copyButton(() => message.content));
  }
  return box;
}
// "‹ 2 of 3 ›" if the message has alternatives.
function branchButtons(conversation, index, actions) {
  const box = element("span", "branches");
  const all = childrenOf(conversation, conversation.nodes[index].parent), at = all.indexOf(index);
  if (all.length < 2) return box;
  const go = (text, name, to) => {
    const b = button(text, "quiet", () => actions.show(all[to]));
    b.disabled = to < 0 || to >= all.length;
    b.setAttribute("aria-label", name);
    return b;
  };
  const place = " " + (at + 1) + " of " + all.length + " ";
  box.append(go("‹", "Previous branch", at - 1), place, go("›", "Next branch", at + 1));
  return box;
}
function fillReply(box, node, retry, isLive) {
  const {message} = node, role = box.firstChild;
  const details = element("details"), reasoning = element("div", "plain"), summary = element("summary");
  const text = element("div", "text"), calls = element("div"), state = element("div");
  const stats = element("div", "stats");
  details.append(summary, reasoning);
  box.append(details, text, calls, state, stats);
  role.append(element("span", "fill"), copyButton(() => message.content), button("Regenerate", "quiet", retry));
  // Each call with `live` reads the Markdown again, so the caller draws slow replies less often.
  box.show = live => {
    details.hidden = !message.reasoning_content;
    reasoning.textContent = message.reasoning_content || "";
    summary.textContent = live && !message.content ? "Thinking …" : "Thinking";
    showMarkdown(text, message.content || "", live);
    calls.replaceChildren(...(message.tool_calls || []).map(c =>
      element("div", "call", c.function.name + "(" + c.function.arguments + ")")));
    stats.textContent = node.stats || "";
    state.replaceChildren();
    if (!live && node.error) state.append(failure(node.error, retry));
  };
  box.progress = p => {
    if (!p) return state.replaceChildren();
    const bar = element("progress");
    bar.max = p.total;
    bar.value = p.processed;
    const cached = p.cache ? ", " + grouped(p.cache) + " cached tokens" : "";
    state.replaceChildren(bar, element("span", "stats", "Reading the prompt: " + grouped(p.processed) + " of " +
      grouped(p.total) + " tokens" + cached));
  };
  box.show(Boolean(isLive));
}
function failure(text, retry) {
  const box = element("div", "failure");
  box.append(element("span", "error", text), " ", button("Try again", "", retry));
  return box;
}
// Edits a message in a text area: sends it as another branch, or leaves it unchanged. Its files stay.
function editCard(box, content, send, hasFiles) {
  const form = element("form", "edit"), area = element("textarea"), buttons = element("div", "buttons");
  const kept = [...box.childNodes];
  const close = () => box.replaceChildren(...kept);
  area.value = content;
  area.setAttribute("aria-label", "Edit the message");
  area.oninput = () => fitHeight(area);
  buttons.append(button("Cancel", "", close), element("button", "main", "Send as a branch"));
  form.append(area, buttons);
  form.onsubmit = event => { event.preventDefault(); if (area.value.trim() || hasFiles) send(area.value.trim()); };
  area.onkeydown = event => {
    if (event.key === "Escape") { event.stopPropagation(); close(); }
    if (isSendKey(event)) { event.preventDefault(); form.requestSubmit(); }
  };
  box.replaceChildren(form);
  fitHeight(area);
  area.focus();
}
// Enter sends. On touch screens it begins a line, and the button sends.
const isSendKey = event => event.key === "Enter" && !event.shiftKey && !event.isComposing && !BY_TOUCH;

// A form for the results of the calls at the end of a reply.
function resultsCard(message, send) {
  const form = element("form", "message tool");
  form.append(element("div", "role", "Results of the calls"));
  const inputs = message.tool_calls.map(call => {
    const label = element("label", "", call.function.name + " "), input = element("input");
    input.style.width = "100%";
    label.append(input);
    form.append(label);
    return input;
  });
  form.append(element("button", "", "Send results"));
  form.onsubmit = event => {
    event.preventDefault();
    send(message.tool_calls.map((call, i) => ({role: "tool", tool_call_id: call.id, content: inputs[i].value})));
  };
  return form;
}

// Shown while a conversation is empty: the model's name, and example prompts that `send` fills in and sends.
const EXAMPLES = ["Explain how a hash table works, with a small example.",
  "Write a Python function that merges two sorted lists.", "Plan a simple dinner for four people."];
const emptyTitle = model => (model ? "Chat with " + model : "Chat with this model");
function emptyCard(model, send) {
  const box = element("div", "empty"), examples = element("div", "examples");
  examples.append(...EXAMPLES.map(text => button(text, "", () => send(text))));
  const hint = element("p", "", "Try an example, or write a message below.");
  box.append(element("h2", "", emptyTitle(model)), hint, examples);
  return box;
}
