// Stores conversations in this browser's IndexedDB: whole conversations by id, and the entries of the list. Without
// IndexedDB (in some private windows) they last as long as the page.
const STORES = ["conversations", "titles"];
const inMemory = new Map();
const database = new Promise(resolve => {
  let request;
  try { request = indexedDB.open("dsv4", 1); } catch { return resolve(null); }
  request.onupgradeneeded = () => STORES.forEach(name => request.result.createObjectStore(name, {keyPath: "id"}));
  request.onsuccess = () => {
    request.result.onversionchange = () => request.result.close();
    resolve(request.result);
  };
  request.onerror = () => resolve(null);
});

// Runs work(conversations, titles, give). Resolves to the value passed to give, after the transaction is complete.
async function inStore(mode, work) {
  const db = await database;
  return new Promise((resolve, reject) => {
    const change = db.transaction(STORES, mode);
    let result;
    work(...STORES.map(name => change.objectStore(name)), value => { result = value; });
    change.oncomplete = () => resolve(result);
    change.onabort = () => reject(change.error);
  });
}
const newId = () => [...crypto.getRandomValues(new Uint8Array(12))].map(b => b.toString(16).padStart(2, "0")).join("");

// If another tab has changed the same conversation, this tab's conversation becomes a copy.
async function saveConversation(conversation, updated) {
  conversation.updated = updated;
  const {id, title} = conversation;
  if (!await database) return inMemory.set(id, Object.assign(conversation, {version: conversation.version + 1}));
  return inStore("readwrite", (conversations, titles, give) => {
    const before = conversations.get(id);
    before.onsuccess = () => {
      const gone = before.result && before.result.version !== conversation.version;
      const kept = {...conversation, id: gone ? newId() : id, version: conversation.version + 1};
      conversations.put(kept);
      titles.put({id: kept.id, title, updated});
      give({id: kept.id, version: kept.version});
    };
  }).then(kept => Object.assign(conversation, kept));
}
async function loadConversation(id) {
  if (!await database) return inMemory.get(id);
  return inStore("readonly", (conversations, titles, give) => {
    const found = conversations.get(id);
    found.onsuccess = () => give(found.result);
  });
}
async function deleteConversation(id) {
  if (!await database) return inMemory.delete(id);
  return inStore("readwrite", (conversations, titles) => { conversations.delete(id); titles.delete(id); });
}
// [{id, title, updated}], latest first.
async function listConversations() {
  const all = !await database ? [...inMemory.values()] : await inStore("readonly", (conversations, titles, give) => {
    const found = titles.getAll();
    found.onsuccess = () => give(found.result);
  });
  return all.sort((a, b) => b.updated - a.updated);
}
