// Conversations as a JSON file: export, and import of what export or `/save` of `dsv4 chat` wrote. A file may come from
// anywhere, so import copies only known fields of known types.
const FORMAT = "dsv4-conversations";
const LARGEST_IMPORT = 64 * 1024 * 1024, MOST_CONVERSATIONS = 1000, MOST_NODES = 5000, MOST_CALLS = 128;
const LONGEST_TITLE = 200;

function download(name, text) {
  const a = element("a");
  a.href = URL.createObjectURL(new Blob([text], {type: "application/json"}));
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 10000);
}
function exportText(conversations) {
  const all = conversations.map(({title, updated, leaf, nodes}) => ({title, updated, leaf, nodes}));
  return JSON.stringify({format: FORMAT, version: 1, conversations: all}, null, 1);
}
function exportName(conversations) {
  const title = conversations.length === 1 ? conversations[0].title : "conversations";
  const words = title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 50);
  return "dsv4-" + (words || "conversation") + ".json";
}
async function exportConversations(ids) {
  const found = [];
  for (const id of ids) {
    const conversation = runningConversation(id) || await loadConversation(id);
    if (conversation) found.push(conversation);
  }
  if (!found.length) return notify("There is no conversation to export.");
  download(exportName(found), exportText(found));
}

// ---- Import

const isObject = value => typeof value === "object" && value !== null && !Array.isArray(value);
const isIndex = (value, end) => Number.isInteger(value) && value >= -1 && value < end;  // -1: none
function need(condition, text) { if (!condition) throw new Error(text); }
function textOf(value, name, longest = LARGEST_IMPORT) {
  need(typeof value === "string", name + " is not a text");
  need(value.length <= longest, name + " has more than " + grouped(longest) + " characters");
  return value;
}
function callOf(call) {
  need(isObject(call) && isObject(call.function), "a call is not an object with a function");
  const {name, arguments: text} = call.function;
  return {id: textOf(call.id ?? "", "the id of a call", 200), type: "function",
    function: {name: textOf(name, "the name of a function", 200), arguments: textOf(text, "the arguments of a call")}};
}
function listOf(value, name, most, read) {
  need(Array.isArray(value), name + " is not a list");
  need(value.length <= most, name + " has more than " + grouped(most) + " entries");
  return value.map(read);
}
function messageOf(message) {
  need(isObject(message), "a message is not an object");
  need(["system", "user", "assistant", "tool"].includes(message.role), "a message has no known role");
  const read = {role: message.role, content: textOf(message.content ?? "", "a message's content")};
  if (message.role === "tool") read.tool_call_id = textOf(message.tool_call_id ?? "", "tool_call_id", 200);
  if (message.role !== "assistant") return read;
  if (message.reasoning_content) read.reasoning_content = textOf(message.reasoning_content, "reasoning_content");
  if (message.tool_calls) read.tool_calls = listOf(message.tool_calls, "tool_calls", MOST_CALLS, callOf);
  return read;
}
function fileOf(file) {
  need(isObject(file), "a file is not an object");
  const name = textOf(file.name, "a file's name", 1000), text = textOf(file.text, "a file's text", LARGEST_FILE);
  return {name: cleanName(name), text};
}
function nodeOf(node, index) {
  need(isObject(node), "a node is not an object");
  need(isIndex(node.parent, index), "the parent of a message is not before it");
  const read = {parent: node.parent, message: messageOf(node.message)};
  if (node.files) read.files = listOf(node.files, "files", MOST_FILES, fileOf);
  if (node.stats) read.stats = textOf(node.stats, "stats", 1000);
  if (node.error) read.error = textOf(node.error, "error", 10000);
  if (Number.isSafeInteger(node.tokens) && node.tokens > 0) read.tokens = node.tokens;
  return read;
}
function conversationOf(value) {
  need(isObject(value), "a conversation is not an object");
  const read = newConversation();
  read.nodes = listOf(value.nodes, "nodes", MOST_NODES, nodeOf);
  need(read.nodes.length > 0, "a conversation has no messages");
  need(isIndex(value.leaf, read.nodes.length), "leaf is not the index of a message");
  read.leaf = value.leaf;
  read.title = cleanTitle(textOf(value.title ?? "", "a title", 100000)) || "Imported";
  if (Number.isFinite(value.updated)) read.updated = Math.max(0, Math.min(value.updated, Date.now()));
  return read;
}
// A request in OpenAI form, as `/save` of `dsv4 chat` writes it.
function conversationOfRequest(request) {
  const messages = listOf(request.messages, "messages", MOST_NODES, messageOf);
  const nodes = messages.map((message, i) => ({parent: i - 1, message}));
  const first = messages.find(message => message.role === "user");
  return conversationOf({nodes, leaf: nodes.length - 1, title: first ? first.content.slice(0, 1000) : ""});
}
function readExport(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error("it is not JSON");
  }
  need(isObject(value), "it is not an export of conversations");
  if (Array.isArray(value.messages)) return [conversationOfRequest(value)];
  need(value.format === FORMAT, "it is not an export of conversations");
  need(value.version === 1, "it has a version that this page does not know");
  return listOf(value.conversations, "conversations", MOST_CONVERSATIONS, conversationOf);
}
// Imported conversations get new ids, so they replace nothing.
async function importFile(file) {
  let read;
  try {
    read = readExport((await readTextFile(file, LARGEST_IMPORT)).text);
  } catch (error) {
    return notify(cleanName(file.name) + " was not imported: " + error.message);
  }
  try {
    for (const conversation of read) await saveConversation(conversation, conversation.updated || Date.now());
    notify(read.length + (read.length === 1 ? " conversation" : " conversations") + " imported", true);
  } catch (error) {
    notify("The browser could not store the conversations: " + error.message);
  }
  if (read.length === 1) show(read[0]);
  else showList();
}
