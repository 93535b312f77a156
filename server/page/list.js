// The list of conversations: opens, renames, exports, deletes.
let listShown = "", listAsked = 0, listOpened = "";  // what it shows; the latest request; the entry with open actions

const cleanTitle = title => title.replace(/[\p{Cc}\p{Zl}\p{Zp}]+/gu, " ").trim().slice(0, LONGEST_TITLE);

async function renameConversation(id, title) {
  const found = runningConversation(id) || (id === conversation.id ? conversation : await loadConversation(id));
  if (!found) return;
  found.title = title;
  await keep(found, found.updated);
}
function renameForm(li, id, title) {
  const form = element("form", "rename"), input = element("input");
  input.value = title;
  input.maxLength = LONGEST_TITLE;
  input.setAttribute("aria-label", "Name of the conversation");
  const close = () => { form.remove(); showList(true); };
  form.onsubmit = async event => {
    event.preventDefault();
    const wanted = cleanTitle(input.value);
    listOpened = "";
    if (wanted && wanted !== title) await renameConversation(id, wanted);
    close();
  };
  input.onkeydown = event => { if (event.key === "Escape") { event.stopPropagation(); close(); } };
  form.append(input, element("button", "main", "Rename"));
  li.replaceChildren(form);
  input.focus();
  input.select();
}
async function removeConversation(id) {
  if (!confirm("Delete this conversation?")) return;
  const reply = runningReply(id);
  if (reply) reply.drop();
  await keeping;
  await deleteConversation(id);
  if (id === conversation.id) show(newConversation());
  else showList();
}
function listEntry({id, title}) {
  const li = element("li", id === conversation.id ? "current" : ""), actions = element("div", "actions");
  const name = button(title, "title", () => openConversation(id));
  name.title = title;
  if (id === conversation.id) name.setAttribute("aria-current", "true");
  const more = button("⋯", "more", () => {
    listOpened = listOpened === id ? "" : id;
    showList(true);
  });
  more.setAttribute("aria-label", "Actions for " + title);
  more.setAttribute("aria-expanded", String(listOpened === id));
  actions.hidden = listOpened !== id;
  actions.append(button("Rename", "rename quiet", () => renameForm(li, id, title)),
    button("Export", "export quiet", () => exportConversations([id])),
    button("Delete", "delete quiet", () => removeConversation(id)));
  li.append(name);
  if (runningReply(id)) li.append(element("span", "running", "writing …"));
  li.append(more, actions);
  return li;
}
// Entries stay as they are if nothing changed, so that focus stays. With `always` they are shown again in any case.
async function showList(always = false) {
  const asked = listAsked += 1;
  const all = await listConversations();
  if (asked !== listAsked || $("list").querySelector("form")) return;
  const state = JSON.stringify([conversation.id, ...all.map(({id, title}) => [id, title, Boolean(runningReply(id))])]);
  if (state === listShown && !always) return;
  listShown = state;
  $("list").replaceChildren(...all.map(listEntry));
}
function listenForList() {
  $("exportall").onclick = async () => exportConversations((await listConversations()).map(({id}) => id));
  $("import").onclick = () => $("importfile").click();
  $("importfile").onchange = () => {
    const [file] = $("importfile").files;
    if (file) importFile(file).finally(() => { $("importfile").value = ""; });
  };
}
