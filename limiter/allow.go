package limiter

// Allow reports whether the budget of key has room for one more, and takes it
// if so. It is Take for whoever needs no more than yes or no, and quicker.
func (l *Limit) Allow(key string) bool { return l.AllowN(key, 1) }

// AllowN is Allow for a cost of n. A cost of zero or less takes nothing and is
// always allowed.
func (l *Limit) AllowN(key string, n int64) bool {
	_, wait, _ := l.budgets.decide(l.memory, key, n, false)
	return wait == 0
}
