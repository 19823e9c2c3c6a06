package ledger

import (
	"encoding/json"

	"execsession.dev/agentd/ledger/jsonline"
)

// encode makes a record's JSON. Those that every command has are written by hand.
func encode(r Record) ([]byte, error) {
	alone := r
	alone.Started, alone.Exited = nil, nil
	if (r.Started == nil) == (r.Exited == nil) || alone.hasBody() {
		return json.Marshal(r)
	}
	const ordinary = 512
	o := jsonline.Into(make([]byte, 0, ordinary))
	o.Open("")
	o.Int("v", int64(r.Version))
	o.Text("boot", r.Boot)
	o.Uint("seq", r.Seq)
	o.Time("time", r.Time)
	o.Text("type", string(r.Type))
	if r.Started != nil {
		r.Started.write(o)
	} else {
		r.Exited.write(o)
	}
	o.Close()
	return o.End()
}

func (r Record) hasBody() bool {
	return r.Status != nil || r.Started != nil || r.Exited != nil || r.Policy != nil || r.Refused != nil || r.Denied != nil
}

func (s *Started) write(o *jsonline.Object) {
	o.Open("started")
	o.Int("id", int64(s.ID))
	o.Text("program", s.Program)
	o.Text("digest", s.Digest)
	o.SomeText("command", s.Command)
	o.SomeTrue("tty", s.TTY)
	o.Close()
}

func (e *Exited) write(o *jsonline.Object) {
	o.Open("exited")
	o.Int("id", int64(e.ID))
	o.Text("reason", e.Reason)
	o.Int("exitCode", int64(e.ExitCode))
	o.SomeText("signal", e.Signal)
	o.Time("startTime", e.StartTime)
	o.Time("endTime", e.EndTime)
	o.Uint("outputBytes", e.OutputBytes)
	o.SomeText("message", e.Message)
	o.Close()
}
