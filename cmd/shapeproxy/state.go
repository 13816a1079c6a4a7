package main

import "time"

// saveState writes the state file each state_interval, and once more when stop
// is closed. Of errors in a row that are the same, the first is logged.
func (s *service) saveState(stop <-chan struct{}) {
	ticker := time.NewTicker(s.started.Server.StateInterval)
	defer ticker.Stop()
	last := ""
	for stopped := false; !stopped; {
		select {
		case <-ticker.C:
		case <-stop:
			stopped = true
		}
		err := s.system.Save()
		switch {
		case err == nil:
			last = ""
		case err.Error() != last:
			last = err.Error()
			s.log.Error("the state file was not written; the one before stays", "file", s.started.Server.StateFile, "error", err)
		}
	}
}
