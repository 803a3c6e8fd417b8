package main

import (
	"cmp"
	"slices"
)

// order is the numbers of all objects, sorted as the API server lists them: by namespace and name.
func order(kind *kind, count int, seed uint64) []uint32 {
	type sorted struct {
		key    string
		number uint32
	}
	keys := make([]sorted, count)
	for number := range keys {
		keys[number] = sorted{kind.identify(number, chanceOf(seed, number)).key(), uint32(number)}
	}
	slices.SortFunc(keys, func(a, b sorted) int { return cmp.Compare(a.key, b.key) })
	numbers := make([]uint32, count)
	for at, entry := range keys {
		numbers[at] = entry.number
	}
	return numbers
}
