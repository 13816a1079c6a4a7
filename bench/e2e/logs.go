package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// An arrival is one line of nginx's log.
type arrival struct {
	id        int
	at        time.Time // when nginx began to read the request, in whole milliseconds
	target    string
	forwarded string // X-Forwarded-For
	status    int
	sent      int64 // bytes of the body
}

// nginxLog is the form of nginx's access log that readNginxLog reads.
const nginxLog = `log_format e2e escape=json '{"id":"$http_x_request_id","msec":"$msec","took":"$request_time",'
	'"target":"$request_uri","forwarded":"$http_x_forwarded_for","status":$status,"sent":$body_bytes_sent}';
	access_log access.log e2e;`

func readNginxLog(r io.Reader) (map[int]arrival, error) {
	byID := make(map[int]arrival)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var line struct {
			ID, Msec, Took, Target, Forwarded string
			Status                            int
			Sent                              int64
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("nginx's log: %w: %s", err, lines.Text())
		}
		id, err := strconv.Atoi(line.ID)
		if err != nil {
			return nil, fmt.Errorf("nginx's log: a request without its id: %s", lines.Text())
		}
		if _, twice := byID[id]; twice {
			return nil, fmt.Errorf("nginx's log has request %d twice: %s", id, lines.Text())
		}
		ended, err1 := milliseconds(line.Msec)
		took, err2 := milliseconds(line.Took)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("nginx's log: a time that is none: %s", lines.Text())
		}
		byID[id] = arrival{id, time.UnixMilli(ended - took), line.Target, line.Forwarded, line.Status, line.Sent}
	}
	return byID, lines.Err()
}

// milliseconds reads nginx's seconds with three decimals.
func milliseconds(s string) (int64, error) {
	return strconv.ParseInt(strings.Replace(s, ".", "", 1), 10, 64)
}
