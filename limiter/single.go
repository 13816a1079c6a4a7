package limiter

// A Single is a limit with one budget, for a program that counts everything
// together. It is safe for concurrent use.
type Single struct{ limit *Limit }

// NewSingle returns a limit that follows p with one budget, all of it unused.
// MaxKeys of p means nothing here.
func NewSingle(p Policy) (*Single, error) {
	p.MaxKeys = 1
	l, err := New(p)
	if err != nil {
		return nil, err
	}
	return &Single{l}, nil
}

// Allow reports whether there is room for one more, and takes it if so.
func (s *Single) Allow() bool { return s.limit.Allow("") }

// AllowN is Allow for a cost of n.
func (s *Single) AllowN(n int64) bool { return s.limit.AllowN("", n) }

// Take takes cost if it fits, as Limit.Take does.
func (s *Single) Take(cost int64) Decision { return s.limit.Take("", cost) }

// Peek says what Take would decide and changes nothing, as Limit.Peek does.
func (s *Single) Peek(cost int64) Decision { return s.limit.Peek("", cost) }

// Adopt makes the limit follow p from now on, as Limit.Adopt does.
func (s *Single) Adopt(p Policy) error {
	p.MaxKeys = 1
	return s.limit.Adopt(p)
}
