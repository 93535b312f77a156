// Shows how much of the model's context the shown conversation uses, and warns before the context is full.
const NEARLY_FULL = 0.85;
let contextSize = 0;  // tokens; 0: not known

const grouped = n => n.toLocaleString("en");
// Tokens that the shown branch used in its latest reply; 0: not known.
function tokensOf(conversation) {
  const path = branch(conversation);
  for (const index of path.reverse()) if (conversation.nodes[index].tokens) return conversation.nodes[index].tokens;
  return 0;
}
function showGauge(tokens) {
  const gauge = $("gauge"), isNearlyFull = tokens >= NEARLY_FULL * contextSize;
  gauge.hidden = !contextSize || !tokens;
  if (gauge.hidden) return;
  gauge.classList.toggle("warn", isNearlyFull);
  const [meter, label] = gauge.children;
  const high = NEARLY_FULL * contextSize;
  Object.assign(meter, {max: contextSize, value: Math.min(tokens, contextSize), high, optimum: 0});
  label.textContent = "Context: " + grouped(tokens) + " of " + grouped(contextSize) + " tokens" +
    (isNearlyFull ? ". It is nearly full: start a new conversation" : "");
}
