package main

import (
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// chance draws the varied parts of one object. Each object has its own, from the seed and its number: so any object can be made
// at any time, by any thread, and is always the same.
type chance struct {
	*rand.Rand
	seed uint64
}

func chanceOf(seed uint64, number int) chance {
	return chance{rand.New(rand.NewPCG(seed, uint64(number))), seed}
}

// common is the same for all objects of a group: what their template has drawn.
func (c chance) common(group int) chance {
	return chanceOf(^c.seed, group)
}

// bytes are n random ones.
func (c chance) bytes(n int) []byte {
	drawn := make([]byte, n)
	for at := range drawn {
		drawn[at] = byte(c.Uint32())
	}
	return drawn
}

// hex is a hexadecimal number of n digits.
func (c chance) hex(n int) string {
	return hex.EncodeToString(c.bytes((n + 1) / 2))[:n]
}

// suffix is what the API server appends to a generated name: letters and digits that spell no words.
func (c chance) suffix() string {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	drawn := make([]byte, 5)
	for at := range drawn {
		drawn[at] = letters[c.IntN(len(letters))]
	}
	return string(drawn)
}

func (c chance) uid() types.UID {
	digits := c.hex(32)
	return types.UID(digits[:8] + "-" + digits[8:12] + "-4" + digits[13:16] + "-a" + digits[17:20] + "-" + digits[20:])
}

// address is one of 10.0.0.0/8.
func (c chance) address() string {
	return netip.AddrFrom4([4]byte{10, byte(c.IntN(250)), byte(c.IntN(250)), byte(1 + c.IntN(250))}).String()
}

// moment is a second of the first half of 2026.
func (c chance) moment() metav1.Time {
	return metav1.NewTime(time.Date(2026, 1, 1, 0, 0, c.IntN(180*24*3600), 0, time.UTC))
}

func (c chance) pick(from ...string) string {
	return from[c.IntN(len(from))]
}

// words are n bytes of readable text at least, ended by a word.
func (c chance) words(n int) string {
	text := make([]byte, 0, n+16)
	for len(text) < n {
		text = append(text, c.pick(vocabulary...)...)
		text = append(text, c.pick(" ", " ", ": ", "=", "\n")...)
		if c.IntN(4) == 0 {
			text = append(text, c.hex(6+c.IntN(6))...)
			text = append(text, '\n')
		}
	}
	return string(text)
}

var vocabulary = []string{
	"server", "listen", "timeout", "upstream", "database", "pool", "size", "enabled", "true", "false", "level", "info", "retry",
	"limit", "cache", "path", "/var/lib/data", "/etc/ssl/certs", "host", "port", "user", "schema", "interval", "30s", "5m", "burst",
	"region", "bucket", "queue", "consumer", "topic", "partition", "batch", "flush", "metrics", "trace", "sample", "header", "cookie",
}
