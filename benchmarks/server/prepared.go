package main

import (
	"bytes"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"syscall"
)

const (
	// Where the things are that change with each event: no object says this elsewhere.
	versionHole = "RRRRRRRRRR"
	sentHole    = "SSSSSSSSSSSSSSSSSSS"
	// seenHole is in the status of objects that can be written: what the controller has seen of bench/sent.
	seenHole = "WWWWWWWWWWWWWWWWWWW"
	// firstVersion has as many digits as all versions that follow, and no leading zero: clients compare them as numbers.
	firstVersion = 1_000_000_000
	blockSize    = 1024
)

// span is where an object is in its block, and where its holes are in the object.
// An object without a status that can be written has no hole for it: `seen` is 0.
type span struct{ offset, size, version, sent, seen uint32 }

// block is the bytes of up to blockSize objects, one after the other. They are outside of the heap: a million pods are of no interest to
// the garbage collector, and its reserve of as much memory again isn't needed.
type block struct {
	bytes []byte
	spans []span
}

// prepared is every object in one format.
type prepared struct {
	format format
	blocks []block
}

// prepare encodes `count` objects on all processors.
func prepare(format format, count int, object func(at int) any) (*prepared, error) {
	made := &prepared{format: format, blocks: make([]block, (count+blockSize-1)/blockSize)}
	numbers, failures := make(chan int, len(made.blocks)), make(chan error, len(made.blocks))
	for number := range made.blocks {
		numbers <- number
	}
	close(numbers)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			var buffer []byte
			for number := range numbers {
				begin := number * blockSize
				var err error
				made.blocks[number], buffer, err = fill(format, buffer[:0], begin, min(begin+blockSize, count), object)
				failures <- err
			}
		})
	}
	workers.Wait()
	close(failures)
	for err := range failures {
		if err != nil {
			return nil, err
		}
	}
	return made, nil
}

// fill encodes the objects of one block by way of a buffer that is used again.
func fill(format format, buffer []byte, begin, end int, object func(at int) any) (block, []byte, error) {
	filled := block{spans: make([]span, 0, end-begin)}
	for at := begin; at < end; at++ {
		encoded, err := format.encode(object(at))
		if err != nil {
			return block{}, buffer, err
		}
		version, sent := bytes.Index(encoded, []byte(versionHole)), bytes.Index(encoded, []byte(sentHole))
		if version < 0 || sent < 0 {
			return block{}, buffer, fmt.Errorf("object %d has nowhere to say its version and when it was sent", at)
		}
		seen := max(0, bytes.Index(encoded, []byte(seenHole)))
		filled.spans = append(filled.spans, span{uint32(len(buffer)), uint32(len(encoded)), uint32(version), uint32(sent), uint32(seen)})
		buffer = append(buffer, encoded...)
	}
	var err error
	filled.bytes, err = syscall.Mmap(-1, 0, len(buffer), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	copy(filled.bytes, buffer)
	return filled, buffer, err
}

// size is that of one object.
func (p *prepared) size(at int) int { return int(p.blocks[at/blockSize].spans[at%blockSize].size) }

// append copies one object with its holes filled.
func (p *prepared) append(buffer []byte, at int, state change) []byte {
	from := &p.blocks[at/blockSize]
	where := from.spans[at%blockSize]
	start := len(buffer)
	buffer = append(buffer, from.bytes[where.offset:where.offset+where.size]...)
	digits(buffer[start+int(where.version):][:len(versionHole)], state.version)
	digits(buffer[start+int(where.sent):][:len(sentHole)], uint64(state.sent))
	if where.seen > 0 {
		digits(buffer[start+int(where.seen):][:len(seenHole)], uint64(state.seen))
	}
	return buffer
}

// digits fills a hole with a number, from the right.
func digits(hole []byte, number uint64) {
	for at := len(hole) - 1; at >= 0; at-- {
		hole[at] = byte('0' + number%10)
		number /= 10
	}
}

func written(version uint64) string { return strconv.FormatUint(version, 10) }
