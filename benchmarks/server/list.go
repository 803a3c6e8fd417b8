package main

import (
	"encoding/base64"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// chunk is how many bytes of a list are written at once.
const chunk = 128 << 10

// list answers with all objects, or with those of a page. Nothing is written if there is an error.
func (a *api) list(w http.ResponseWriter, r *http.Request, asked question, objects *prepared) error {
	state, begin, err := a.page(asked)
	if err != nil {
		return err
	}
	end, meta := begin, metav1.ListMeta{ResourceVersion: written(state.version), ShardInfo: asked.part.info()}
	listed, count := 0, 0
	// A limit means nothing to those who take what is at hand: the API server answers them from memory.
	for limited := asked.limit > 0 && !asked.zero; end < len(state.states) && !(limited && count == asked.limit); end++ {
		if asked.part.has(end) {
			listed, count = listed+objects.format.listed(objects.size(end)), count+1
		}
	}
	if end < len(state.states) {
		remaining := int64(len(state.states) - begin - count)
		meta.Continue, meta.RemainingItemCount = token(state.version, end), &remaining
	}
	w.Header().Set("Content-Type", objects.format.mediaType())
	buffer := objects.format.listBegin(make([]byte, 0, 2*chunk), meta, listed)
	first := true
	for at := begin; at < end; at++ {
		if !asked.part.has(at) {
			continue
		}
		buffer = objects.format.listItem(buffer, objects.size(at), first)
		first = false
		buffer = objects.append(buffer, at, state.states[at])
		if len(buffer) >= chunk {
			if a.write(w, buffer) != nil {
				return nil
			}
			buffer = buffer[:0]
		}
	}
	_ = a.write(w, objects.format.listEnd(buffer, meta))
	return nil
}

// page is where a list goes on, or its begin.
func (a *api) page(asked question) (*snapshot, int, error) {
	a.pages.Add(1)
	if asked.next == "" {
		a.lists.Add(1)
		return a.store.snapshot(), 0, nil
	}
	version, begin, err := position(asked.next)
	if err != nil {
		return nil, 0, err
	}
	if state := a.store.snapshotAt(version); state != nil && begin <= len(state.states) {
		return state, begin, nil
	}
	return nil, 0, apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result.")
}

// token says where the next page begins.
func token(version uint64, begin int) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d/%d", version, begin))
}

func position(token string) (version uint64, begin int, err error) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err == nil {
		_, err = fmt.Sscanf(string(text), "%d/%d", &version, &begin)
	}
	if err != nil || begin < 0 {
		return 0, 0, apierrors.NewBadRequest("continue key is not valid")
	}
	return version, begin, nil
}

// write counts what is written.
func (a *api) write(w http.ResponseWriter, buffer []byte) error {
	count, err := w.Write(buffer)
	a.bytes.Add(int64(count))
	return err
}
