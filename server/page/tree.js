// A conversation is a tree of messages: whoever edits a message or asks again begins a branch. nodes[i] has the index
// of the one before it, `parent` (-1: none), always a lower one; `leaf` is the end of the branch that is shown.
function newConversation() {
  return {id: newId(), version: 0, title: "", updated: 0, nodes: [], leaf: -1};
}
function addNode(conversation, parent, message) {
  conversation.leaf = conversation.nodes.push({parent, message}) - 1;
  if (!conversation.title && message.role === "user") conversation.title = message.content.trim().slice(0, 80);
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
// Shows the branch through this node: its end is what was written last behind it.
function showBranch(conversation, index) {
  for (let next = [index]; next.length; next = childrenOf(conversation, conversation.leaf)) {
    conversation.leaf = next[next.length - 1];
  }
}
// Shows the branch up to what this reply, or one that is to come behind this message, answers. A reply that failed
// without a word is forgotten where nothing depends on it.
function backTo(conversation, index) {
  const {message, parent} = conversation.nodes[index];
  conversation.leaf = message.role === "assistant" ? parent : index;
  if (isEmpty(message) && index === conversation.nodes.length - 1) conversation.nodes.pop();
}
const isEmpty = m => m.role === "assistant" && !m.content && !m.reasoning_content && !m.tool_calls;
// As the API takes them.
function messagesOf(conversation) {
  return branch(conversation).map(i => conversation.nodes[i].message).filter(m => !isEmpty(m));
}
