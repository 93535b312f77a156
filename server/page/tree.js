// A conversation is a tree of messages: an edited message or a regenerated reply begins a branch. nodes[i].parent is
// the index of the message before it (-1: none), always lower than i. `leaf` is the end of the branch that is shown.
function newConversation() {
  return {id: newId(), version: 0, title: "", updated: 0, nodes: [], leaf: -1};
}
// `files`: [{name, text}] of a message.
function addNode(conversation, parent, message, files = []) {
  conversation.leaf = conversation.nodes.push(files.length ? {parent, message, files} : {parent, message}) - 1;
  if (!conversation.title && message.role === "user") {
    conversation.title = (message.content.trim() || files.map(file => file.name).join(", ")).slice(0, 80);
  }
  return conversation.nodes[conversation.leaf];
}
// Indexes from the first message to the leaf.
function branch(conversation) {
  const path = [];
  for (let i = conversation.leaf; i >= 0; i = conversation.nodes[i].parent) path.unshift(i);
  return path;
}
function childrenOf(conversation, parent) {
  return conversation.nodes.flatMap((node, i) => (node.parent === parent ? [i] : []));
}
// Shows the branch through this node, up to the latest message after it.
function showBranch(conversation, index) {
  for (let next = [index]; next.length; next = childrenOf(conversation, conversation.leaf)) {
    conversation.leaf = next[next.length - 1];
  }
}
// Shows the branch up to the message that needs a reply: the message before this reply, or this message itself. Removes
// an empty reply that failed if no other node depends on it.
function backTo(conversation, index) {
  const {message, parent} = conversation.nodes[index];
  conversation.leaf = message.role === "assistant" ? parent : index;
  if (isEmpty(message) && index === conversation.nodes.length - 1) conversation.nodes.pop();
}
const isEmpty = m => m.role === "assistant" && !m.content && !m.reasoning_content && !m.tool_calls;
// The messages of the shown branch in the API's form.
function messagesOf(conversation) {
  const nodes = branch(conversation).map(i => conversation.nodes[i]).filter(node => !isEmpty(node.message));
  return nodes.map(({message, files}) => (files ? {...message, content: withFiles(files, message.content)} : message));
}
