// A radix tree: values at sequences of symbols; common prefixes are stored once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace dsv4::server {

// Nodes keep their address until they are pruned.
template <typename Symbol, typename Value>
struct RadixNode {
  RadixNode* parent = nullptr;
  std::vector<Symbol> edge;                          // from the parent to here
  size_t depth = 0;                                  // symbols from the root to here
  std::vector<std::unique_ptr<RadixNode>> children;  // ordered by the first symbols of their edges
  Value value{};

  // Returns the position of the child whose edge begins with `symbol`, or the position where it would be inserted.
  auto PlaceOf(Symbol symbol) const {
    return std::lower_bound(children.begin(), children.end(), symbol,
                            [](const auto& child, Symbol s) { return child->edge.front() < s; });
  }
  auto PlaceOf(Symbol symbol) { return children.begin() + (std::as_const(*this).PlaceOf(symbol) - children.cbegin()); }
  // Returns true if `place`, the result of PlaceOf(symbol), is such a child.
  bool IsAt(typename std::vector<std::unique_ptr<RadixNode>>::const_iterator place, Symbol symbol) const {
    return place != children.end() && (*place)->edge.front() == symbol;
  }
};

template <typename Symbol, typename Value>
class RadixTree {
 public:
  using Node = RadixNode<Symbol, Value>;

  Node& root() { return root_; }
  const Node& root() const { return root_; }

  // Returns the node of `key`, and makes it if there is none. If memory runs out, all values stay where they are.
  Node* Insert(std::span<const Symbol> key) {
    Node* node = &root_;
    while (node->depth < key.size()) {
      const std::span<const Symbol> rest = key.subspan(node->depth);
      const auto found = node->PlaceOf(rest.front());
      if (!node->IsAt(found, rest.front())) {
        auto leaf = std::make_unique<Node>();
        leaf->parent = node;
        leaf->edge.assign(rest.begin(), rest.end());
        leaf->depth = key.size();
        return node->children.insert(found, std::move(leaf))->get();
      }
      std::unique_ptr<Node>& place = *found;
      const size_t common = Common(place->edge, rest);
      if (common < place->edge.size()) Split(place, common);
      node = place.get();
    }
    return node;
  }

  // Calls visit(node) for every node whose symbols begin `key`, starting at the root. Returns how many symbols of `key`
  // the tree has; the last of them may be inside an edge.
  template <typename Visit>
  size_t Walk(std::span<const Symbol> key, const Visit& visit) const {
    const Node* node = &root_;
    for (;;) {
      visit(*node);
      if (node->depth == key.size()) return key.size();
      const std::span<const Symbol> rest = key.subspan(node->depth);
      const auto found = node->PlaceOf(rest.front());
      if (!node->IsAt(found, rest.front())) return node->depth;
      const Node* child = found->get();
      const size_t common = Common(child->edge, rest);
      if (common < child->edge.size()) return node->depth + common;
      node = child;
    }
  }

  static std::vector<Symbol> Key(const Node& node) {
    std::vector<Symbol> key(node.depth);
    for (const Node* n = &node; n->parent != nullptr; n = n->parent) {
      std::copy(n->edge.begin(), n->edge.end(), key.begin() + static_cast<std::ptrdiff_t>(n->parent->depth));
    }
    return key;
  }

  // Removes `node`, and then its ancestors, as long as they hold nothing (`holds(node)`) and no other node depends on
  // them. If there is no memory to join two edges, a node that holds nothing stays between them.
  template <typename Holds>
  static void Prune(Node* node, const Holds& holds) noexcept {
    while (node->parent != nullptr && !holds(*node)) {
      Node* parent = node->parent;
      if (node->children.size() > 1) return;
      if (node->children.empty()) {
        parent->children.erase(parent->PlaceOf(node->edge.front()));
        node = parent;
        continue;
      }
      std::vector<Symbol>& below = node->children.front()->edge;
      try {
        below.insert(below.begin(), node->edge.begin(), node->edge.end());
      } catch (const std::bad_alloc&) {
        return;
      }
      std::unique_ptr<Node>& place = *parent->PlaceOf(node->edge.front());
      std::unique_ptr<Node> child = std::move(node->children.front());
      child->parent = parent;
      place = std::move(child);
      return;
    }
  }

 private:
  static size_t Common(std::span<const Symbol> a, std::span<const Symbol> b) {
    const size_t limit = std::min(a.size(), b.size());
    return static_cast<size_t>(
        std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(limit), b.begin()).first - a.begin());
  }

  // Inserts a new node into the edge to `place`, `at` symbols after its start.
  static void Split(std::unique_ptr<Node>& place, size_t at) {
    auto middle = std::make_unique<Node>();
    Node& below = *place;
    const auto cut = below.edge.begin() + static_cast<std::ptrdiff_t>(at);
    middle->parent = below.parent;
    middle->edge.assign(below.edge.begin(), cut);
    middle->depth = below.depth - below.edge.size() + at;
    middle->children.resize(1);  // nothing below needs memory
    below.edge.erase(below.edge.begin(), cut);
    below.parent = middle.get();
    middle->children.front() = std::move(place);
    place = std::move(middle);
  }

  Node root_;
};

}  // namespace dsv4::server
