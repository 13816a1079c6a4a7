package shaping

import "time"

type alarm interface {
	Reset(d time.Duration)
	Stop()
}

type Alarms struct{}

type timerAlarm struct{ *time.Timer }

func (t timerAlarm) Reset(d time.Duration) { t.Timer.Reset(d) }
func (t timerAlarm) Stop()                 { t.Timer.Stop() }

func (a *Alarms) newAlarm(wake func()) alarm {
	t := time.AfterFunc(time.Hour, wake)
	t.Stop()
	return timerAlarm{t}
}
