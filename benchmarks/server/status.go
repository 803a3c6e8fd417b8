package main

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// statusPatch is what a controller may write: one field of the status, on the version that it has read or on any.
type statusPatch struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Status map[string]string `json:"status"`
}

// patchStatus takes a merge patch of status.seen, and answers with the object, as the API server does. It refuses every other field: a
// peer that writes more than the others would be compared with them.
func (a *api) patchStatus(w http.ResponseWriter, r *http.Request) {
	state, at, err := a.statusWritten(r)
	if err != nil {
		refuse(w, err)
		return
	}
	objects, err := a.json()
	if err != nil {
		refuse(w, apierrors.NewInternalError(err))
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_ = a.write(w, objects.append([]byte{'{'}, at, state)) // a client that has gone is told nothing
}

func (a *api) statusWritten(r *http.Request) (state change, at int, err error) {
	id := identity{r.PathValue("namespace"), r.PathValue("name")}
	resource := schema.GroupResource{Group: a.kind.group, Resource: a.kind.resource}
	at, known := a.numbers()[id]
	if !known {
		return change{}, 0, apierrors.NewNotFound(resource, id.name)
	}
	version, seen, err := readStatusPatch(r)
	if err != nil {
		return change{}, 0, apierrors.NewBadRequest(err.Error())
	}
	state, conflict, err := a.store.writeStatus(r.Context(), at, version, seen)
	if conflict {
		err = apierrors.NewConflict(resource, id.name, fmt.Errorf("the object has the version %d", state.version))
	}
	return state, at, err
}

func readStatusPatch(r *http.Request) (version uint64, seen int64, err error) {
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != string(types.MergePatchType) {
		return 0, 0, fmt.Errorf("a status is patched by %s, not by %q", types.MergePatchType, media)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, 0, err
	}
	var patch statusPatch
	if err := json.Unmarshal(body, &patch); err != nil {
		return 0, 0, err
	}
	text, given := patch.Status["seen"]
	if !given || len(patch.Status) != 1 || len(text) != len(seenHole) {
		return 0, 0, fmt.Errorf("status.seen alone can be written, with %d digits: %s", len(seenHole), body)
	}
	if patch.Metadata.ResourceVersion != "" {
		if version, err = strconv.ParseUint(patch.Metadata.ResourceVersion, 10, 63); err != nil {
			return 0, 0, err
		}
	}
	seen, err = strconv.ParseInt(text, 10, 64)
	return version, seen, err
}

// places says where each object is in the order of lists.
func (a *api) places() map[identity]int {
	made := make(map[identity]int, len(a.order))
	for at, number := range a.order {
		made[a.kind.identify(int(number), chanceOf(a.seed, int(number)))] = at
	}
	return made
}
