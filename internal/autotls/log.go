package autotls

import (
	"context"
	"log/slog"

	"go.uber.org/zap/zapcore"
)

// A debugCore passes CertMagic's lines on for debugging, whatever their level:
// what an operator must act on is told in our own words, once. Its own lines for
// debugging are dropped, as they hold what the challenges are answered with.
type debugCore struct {
	log    *slog.Logger
	fields []zapcore.Field
}

func (c debugCore) Enabled(l zapcore.Level) bool {
	return l >= zapcore.InfoLevel && c.log.Enabled(context.Background(), slog.LevelDebug)
}

func (c debugCore) With(fields []zapcore.Field) zapcore.Core {
	c.fields = append(c.fields[:len(c.fields):len(c.fields)], fields...)
	return c
}

func (c debugCore) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c debugCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	for _, list := range [][]zapcore.Field{c.fields, fields} {
		for _, f := range list {
			f.AddTo(values)
		}
	}
	attrs := []slog.Attr{slog.String("said", e.Message), slog.String("part", e.LoggerName)}
	for name, v := range values.Fields {
		attrs = append(attrs, slog.Any(name, v))
	}
	c.log.LogAttrs(context.Background(), slog.LevelDebug, "certmagic", attrs...)
	return nil
}

func (debugCore) Sync() error { return nil }
