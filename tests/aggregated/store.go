package main

import (
	"encoding/json"
	"sort"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// event is what a watcher is told.
type event struct {
	kind string
	ship *unstructured.Unstructured
}

// store keeps ships, and tells watchers of changes.
type store struct {
	mutex    sync.Mutex
	revision int64
	// removed is when the last ship went: what happened before is not told to a watch that begins then.
	removed int64
	ships   map[types.NamespacedName]*unstructured.Unstructured
	// watchers are closed when they cannot keep up.
	watchers map[chan event]struct{}
}

func newStore() *store {
	return &store{
		ships:    map[types.NamespacedName]*unstructured.Unstructured{},
		watchers: map[chan event]struct{}{},
	}
}

func (s *store) tell(kind string, ship *unstructured.Unstructured) {
	for watcher := range s.watchers {
		select {
		case watcher <- event{kind, ship}:
		default:
			delete(s.watchers, watcher)
			close(watcher)
		}
	}
}

func (s *store) stamp(ship *unstructured.Unstructured) {
	s.revision++
	ship.SetResourceVersion(strconv.FormatInt(s.revision, 10))
}

// put creates a ship, or changes it; what is returned is as it is now, and nil when that was not to be.
func (s *store) put(ship *unstructured.Unstructured, creates bool) *unstructured.Unstructured {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	name := types.NamespacedName{Namespace: ship.GetNamespace(), Name: ship.GetName()}
	old, exists := s.ships[name]
	if exists == creates {
		return nil
	}
	if exists {
		ship.SetUID(old.GetUID())
		ship.SetCreationTimestamp(old.GetCreationTimestamp())
	} else {
		ship.SetUID(uuid.NewUUID())
		now, _ := json.Marshal(time.Now().UTC().Format(time.RFC3339))
		created := ship.GetCreationTimestamp()
		_ = created.UnmarshalJSON(now)
		ship.SetCreationTimestamp(created)
	}
	s.stamp(ship)
	s.ships[name] = ship
	if exists {
		s.tell("MODIFIED", ship)
	} else {
		s.tell("ADDED", ship)
	}
	return ship
}

// remove takes ships away, and returns them.
func (s *store) remove(chosen func(*unstructured.Unstructured) bool) []*unstructured.Unstructured {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var gone []*unstructured.Unstructured
	for name, ship := range s.ships {
		if chosen(ship) {
			delete(s.ships, name)
			last := ship.DeepCopy()
			s.stamp(last)
			s.removed = s.revision
			s.tell("DELETED", last)
			gone = append(gone, last)
		}
	}
	return gone
}

// list gives ships in order, and the revision they are of.
func (s *store) list(chosen func(*unstructured.Unstructured) bool) ([]*unstructured.Unstructured, string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.all(chosen), strconv.FormatInt(s.revision, 10)
}

// watch gives what has changed after a revision, and a watcher that is told what comes after; no watcher when
// what has happened since then is not known.
func (s *store) watch(chosen func(*unstructured.Unstructured) bool, from int64) ([]*unstructured.Unstructured, string, chan event) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if from > 0 && from < s.removed {
		return nil, "", nil
	}
	var ships []*unstructured.Unstructured
	for _, ship := range s.all(chosen) {
		if at, _ := strconv.ParseInt(ship.GetResourceVersion(), 10, 64); at > from {
			ships = append(ships, ship)
		}
	}
	watcher := make(chan event, 100)
	s.watchers[watcher] = struct{}{}
	return ships, strconv.FormatInt(s.revision, 10), watcher
}

func (s *store) all(chosen func(*unstructured.Unstructured) bool) []*unstructured.Unstructured {
	var ships []*unstructured.Unstructured
	for _, ship := range s.ships {
		if chosen(ship) {
			ships = append(ships, ship)
		}
	}
	sort.Slice(ships, func(a, b int) bool { return ships[a].GetName() < ships[b].GetName() })
	return ships
}

func (s *store) leave(watcher chan event) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	delete(s.watchers, watcher)
}
