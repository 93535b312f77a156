int Own() { return 1; }
