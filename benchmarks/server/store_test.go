package main

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
)

func TestFollowersSeeEveryChangeOnceAtTheirOwnPace(t *testing.T) {
	const count, objects = 3 * window, 100
	s := newStore(objects)
	var readers sync.WaitGroup
	for _, size := range []int{1, 7, batchSize} {
		f, begin := s.followAll()
		readers.Go(func() {
			state, batch := append([]change(nil), begin.states...), make([]entry, size)
			for told := 0; told < count; {
				<-f.wake
				for read := s.read(f, batch); read > 0; read = s.read(f, batch) {
					for _, changed := range batch[:read] {
						if changed.version != begin.version+uint64(told)+1 {
							t.Errorf("change %d is of version %d", told, changed.version)
						}
						state[changed.at] = changed.change
						told++
					}
					s.wrote(f, batch[read-1].version)
				}
			}
			now := s.snapshot()
			for at, want := range now.states {
				if state[at] != want {
					t.Errorf("object %d is %v, not %v", at, state[at], want)
				}
			}
		})
	}
	for number := range count {
		if err := s.modify(t.Context(), number%objects); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	readers.Wait()
}

func TestAChangeWaitsForAWatchThatIsFarBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStore(1)
		f, _ := s.followAll()
		for range window {
			if err := s.modify(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		}
		changed := make(chan error, 1)
		go func() { changed <- s.modify(t.Context(), 0) }()
		synctest.Wait()
		select {
		case <-changed:
			t.Fatal("it didn't wait")
		default:
		}
		s.leave(f)
		if err := <-changed; err != nil {
			t.Fatal(err)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		s.followAll()
		for range window {
			if err := s.modify(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.modify(gone, 0); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	})
}

func TestTheJournalForgets(t *testing.T) {
	s := newStore(3)
	first := s.newest()
	for range journalSize {
		if err := s.modify(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
	f, known := s.follow(first)
	if !known {
		t.Fatal("forgotten too early")
	}
	batch := make([]entry, 1)
	if s.read(f, batch); batch[0].version != first+1 {
		t.Fatalf("the journal begins with %v", batch[0])
	}
	s.leave(f)
	if err := s.modify(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if _, known := s.follow(first); known {
		t.Fatal("never forgotten")
	}
}
