package main

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// journalSize is how many changes a watch can be behind, and window how many before the next change waits for it.
	journalSize = 1 << 17
	window      = 1 << 15
	// keptSnapshots is how many lists can go on page by page while objects change.
	keptSnapshots = 8
)

// change is the state of an object: all that ever changes of it.
type change struct {
	version uint64
	sent    int64 // when the server changed it, in nanoseconds since 1970
	seen    int64 // what its controller has written into status.seen
}

// entry is a change of one object, in the order of versions.
type entry struct {
	at int
	change
}

// snapshot is the state of all objects at one version. It never changes.
type snapshot struct {
	version uint64
	states  []change
}

// store holds what changes of the objects, and tells the watches. The objects' bytes are elsewhere.
type store struct {
	mutex     sync.Mutex
	states    []change
	version   uint64
	oldest    uint64 // a watch can begin here or later
	journal   []entry
	followers map[*follower]struct{}
	snapshots []*snapshot
	modified  uint64
	written   uint64 // changes of a status
	progress  chan struct{}
}

func newStore(count int) *store {
	made := &store{
		states: make([]change, count), version: firstVersion + uint64(count), journal: make([]entry, journalSize),
		followers: map[*follower]struct{}{}, progress: make(chan struct{}, 1),
	}
	for at := range made.states {
		made.states[at].version = firstVersion + 1 + uint64(at)
	}
	made.oldest = made.version
	return made
}

// follower is a watch: it reads the journal at its own pace.
type follower struct {
	next    uint64        // the version that it hasn't read yet
	written atomic.Uint64 // the version that it has written
	wake    chan struct{} // something may be there to be read
	ended   chan struct{} // closed by expire
}

// follow registers a watch that has seen everything up to `version`; false if that is too long ago.
func (s *store) follow(version uint64) (*follower, bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if version < s.oldest {
		return nil, false
	}
	return s.register(version), true
}

// followAll registers a watch that begins with the state of all objects.
func (s *store) followAll() (*follower, *snapshot) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.register(s.version), s.taken()
}

func (s *store) register(version uint64) *follower {
	made := &follower{next: version + 1, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	made.written.Store(version)
	s.followers[made] = struct{}{}
	signal(made.wake)
	return made
}

func (s *store) leave(f *follower) {
	s.mutex.Lock()
	delete(s.followers, f)
	s.mutex.Unlock()
	signal(s.progress)
}

// read copies the next changes into `batch` and says how many there were.
func (s *store) read(f *follower, batch []entry) int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	count := 0
	for ; count < len(batch) && f.next <= s.version; f.next++ {
		batch[count] = s.journal[f.next%journalSize]
		count++
	}
	return count
}

// wrote says that a watch has written all up to `version`.
func (s *store) wrote(f *follower, version uint64) {
	f.written.Store(version)
	signal(s.progress)
}

// modify changes one object, once no watch is too far behind.
func (s *store) modify(ctx context.Context, at int) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mutex.Unlock()
	s.modified++
	s.states[at].sent = time.Now().UnixNano()
	s.publish(at)
	return nil
}

// writeStatus writes what a controller has seen of an object, and returns the object's state. Nothing is written if that is there already,
// or if the object has another version than `version`; 0 is every version.
func (s *store) writeStatus(ctx context.Context, at int, version uint64, seen int64) (state change, conflict bool, err error) {
	if err := s.lock(ctx); err != nil {
		return change{}, false, err
	}
	defer s.mutex.Unlock()
	if version != 0 && version != s.states[at].version {
		return s.states[at], true, nil
	}
	if s.states[at].seen != seen {
		s.written++
		s.states[at].seen = seen
		s.publish(at)
	}
	return s.states[at], false, nil
}

// lock locks the mutex, once no watch is too far behind.
func (s *store) lock(ctx context.Context) error {
	for {
		s.mutex.Lock()
		if s.version-s.slowest() < window {
			return nil
		}
		s.mutex.Unlock()
		select {
		case <-s.progress:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// publish gives a changed object the next version, and tells the watches.
func (s *store) publish(at int) {
	s.version++
	s.oldest = max(s.oldest, s.version-min(s.version, journalSize))
	s.states[at].version = s.version
	s.journal[s.version%journalSize] = entry{at, s.states[at]}
	for f := range s.followers {
		signal(f.wake)
	}
}

// settle waits until every watch has written what there is.
func (s *store) settle(ctx context.Context) error {
	for {
		s.mutex.Lock()
		behind := s.slowest() < s.version
		s.mutex.Unlock()
		if !behind {
			return nil
		}
		select {
		case <-s.progress:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// slowest is the version that every watch has written.
func (s *store) slowest() uint64 {
	slowest := s.version
	for f := range s.followers {
		slowest = min(slowest, f.written.Load())
	}
	return slowest
}

// expire ends all watches and forgets everything that was before.
func (s *store) expire() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.version++
	s.oldest = s.version
	s.snapshots = nil
	for f := range s.followers {
		close(f.ended)
		delete(s.followers, f)
	}
	signal(s.progress)
}

// newest is the version of the last change.
func (s *store) newest() uint64 {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.version
}

// changed is how often objects were modified.
func (s *store) changed() uint64 {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.modified
}

// statuses is how often a status was changed.
func (s *store) statuses() uint64 {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.written
}

// snapshot is the state of now.
func (s *store) snapshot() *snapshot {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.taken()
}

// snapshotAt is the state that a list began with, if it's still known.
func (s *store) snapshotAt(version uint64) *snapshot {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, kept := range s.snapshots {
		if kept.version == version {
			return kept
		}
	}
	return nil
}

// taken takes a snapshot, if the newest one isn't of this version.
func (s *store) taken() *snapshot {
	if last := len(s.snapshots) - 1; last >= 0 && s.snapshots[last].version == s.version {
		return s.snapshots[last]
	}
	if len(s.snapshots) == keptSnapshots {
		s.snapshots = slices.Delete(s.snapshots, 0, 1)
	}
	made := &snapshot{s.version, slices.Clone(s.states)}
	s.snapshots = append(s.snapshots, made)
	return made
}

func signal(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}
