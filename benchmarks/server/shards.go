package main

import (
	"errors"
	"regexp"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/sharding"
)

var shardRange = regexp.MustCompile(`^shardRange\(object\.metadata\.uid, '0x([0-9a-f]{16})', '0x(10{16}|[0-9a-f]{16})'\)$`)

// shards are the hashes of the uids, by the places in a list. They are made before the first request: a million take seconds.
type shards []uint64

func hashes(count int, object func(at int) any) shards {
	made := make(shards, count)
	for at := range made {
		made[at], _ = strconv.ParseUint(sharding.HashField(uidOf(object(at))), 16, 64)
	}
	return made
}

func uidOf(object any) string {
	if typed, ok := object.(metav1.Object); ok {
		return string(typed.GetUID())
	}
	return object.(map[string]any)["metadata"].(map[string]any)["uid"].(string)
}

// part is what a request with a shardSelector is about; without one, it has everything.
type part struct {
	shards   shards
	selector string
	ranges   [][2]uint64 // from the first to the last
}

// part reads a selector as clients write it: ranges of uids.
func (s shards) part(selector string) (part, error) {
	asked := part{shards: s, selector: selector}
	for text := range strings.SplitSeq(selector, " || ") {
		bounds := shardRange.FindStringSubmatch(text)
		if bounds == nil {
			return part{}, apierrors.NewInternalError(errors.New("this server knows no such shardSelector"))
		}
		begin, _ := strconv.ParseUint(bounds[1], 16, 64)
		end, _ := strconv.ParseUint(bounds[2][len(bounds[2])-16:], 16, 64)
		asked.ranges = append(asked.ranges, [2]uint64{begin, end - 1}) // 2^64 is 0 here, and its predecessor the last
	}
	return asked, nil
}

func (p part) has(at int) bool {
	for _, bounds := range p.ranges {
		if bounds[0] <= p.shards[at] && p.shards[at] <= bounds[1] {
			return true
		}
	}
	return p.ranges == nil
}

// info is what a list says of its selector.
func (p part) info() *metav1.ShardInfo {
	if p.ranges == nil {
		return nil
	}
	return &metav1.ShardInfo{Selector: p.selector}
}
